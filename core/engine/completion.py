"""What admission extensions make of requests, and of what other halves of features say at their
end.

Knows no limit: what comes out is checked at admission like everything else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from core.contracts import AdmissionExtension, Draft
from core.plugin.blame import Blame
from core.types.keywords import Names
from core.types.outputs import check_filled, joined

Extensions = Sequence[tuple[Blame, AdmissionExtension]]


class Completion:
    """Asks the extensions in the order of their plugins; each sees what the ones before it have
    made.
    """

    def __init__(self, extensions: Extensions) -> None:
        self._preparing = [
            (blame, each, _read(each)) for blame, each in extensions if hasattr(each, "prepare")
        ]
        self._finishing = [
            (blame, each.finished) for blame, each in extensions if hasattr(each, "finished")
        ]

    async def of(self, draft: Draft) -> Draft:
        """Return one request completed.

        Raises `InvalidRequest`, and `PluginError` for an extension's fault.
        """
        for blame, extension, names in self._preparing:
            with blame:
                if not _concerns(extension, names, draft):
                    continue
                if inspect.iscoroutinefunction(extension.prepare):
                    made = await extension.prepare(draft)
                else:
                    made = await asyncio.to_thread(extension.prepare, draft)
                if not isinstance(made, Draft):
                    raise TypeError(f"prepare returned {made!r:.100}, not a Draft")
                draft = made
        return draft

    def of_all(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return requests completed, for a caller without an event loop; those that take their time
        do so together.
        """
        if not any(
            _concerns(each, names, draft) for draft in drafts for _, each, names in self._preparing
        ):
            return list(drafts)

        async def together() -> list[Draft]:
            return await asyncio.gather(*map(self.of, drafts))

        with ThreadPoolExecutor(
            1, "admission"
        ) as thread:  # the caller's may run a loop after all, as notebooks do
            return thread.submit(asyncio.run, together()).result()

    def finished(self, features: Mapping[str, bytes]) -> dict[str, Any]:
        """Return fields of outputs for what other halves told."""
        shown: dict[str, Any] = {}
        for blame, finished in self._finishing:
            with blame:
                shown = joined(shown, finished(features))
                check_filled(shown)
        return shown


def _read(extension: AdmissionExtension) -> frozenset[str]:
    return Names.of([extension], "keywords", "fields", "prompt_keys").read


def _concerns(extension: AdmissionExtension, names: frozenset[str], draft: Draft) -> bool:
    asked = getattr(extension, "concerns", None)
    return not names.isdisjoint(draft.given) if asked is None else bool(asked(draft))
