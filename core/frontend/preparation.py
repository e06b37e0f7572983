"""Request preparation: runs the admission extensions, and reads the messages
of other halves.

Knows no limits; admission checks the prepared request like any other.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from core.contracts.admission import AdmissionExtension, PendingRequest
from core.plugin.blame import Blame
from core.types.outputs import check_extra_fields, merge_extra_fields
from core.types.plugin_params import KnownNames

Extensions = Sequence[tuple[Blame, AdmissionExtension]]


class RequestPreparer:
    """Runs the extensions in plugin order; each sees the changes of those
    before it.
    """

    def __init__(self, extensions: Extensions) -> None:
        self._preparing = [
            (blame, each.prepare, _condition(each))
            for blame, each in extensions
            if hasattr(each, "prepare")
        ]
        self._finishing = [
            (blame, each.finished) for blame, each in extensions if hasattr(each, "finished")
        ]

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return one request prepared.

        Raises `InvalidRequest`, and `PluginError` for an extension's fault.
        """
        for blame, prepare, applies in self._preparing:
            with blame:
                if not applies(request):
                    continue
                if inspect.iscoroutinefunction(prepare):
                    prepared = await prepare(request)
                else:
                    prepared = await asyncio.to_thread(prepare, request)
                if not isinstance(prepared, PendingRequest):
                    raise TypeError(f"prepare returned {prepared!r:.100}, not a PendingRequest")
                request = prepared
        return request

    def prepare_all(self, requests: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Return requests prepared concurrently, without an event loop."""
        conditions = [applies for _, _, applies in self._preparing]
        if not any(applies(request) for request in requests for applies in conditions):
            return list(requests)

        async def gather() -> list[PendingRequest]:
            return await asyncio.gather(*map(self.prepare, requests))

        # In a thread: the caller's own may run an event loop, as in notebooks.
        with ThreadPoolExecutor(1, "admission") as thread:
            return thread.submit(asyncio.run, gather()).result()

    def output_fields(self, features: Mapping[str, bytes]) -> dict[str, Any]:
        """Return output fields for other halves' messages (`RequestDelta.features`)."""
        fields: dict[str, Any] = {}
        for blame, finished in self._finishing:
            with blame:
                fields = merge_extra_fields(fields, finished(features))
                check_extra_fields(fields)
        return fields


def _condition(extension: AdmissionExtension) -> Callable[[PendingRequest], bool]:
    names = KnownNames.collect([extension], "keywords", "fields", "prompt_keys").read
    default = lambda request: not names.isdisjoint(request.plugin_fields)  # noqa: E731
    return getattr(extension, "applies_to", default)
