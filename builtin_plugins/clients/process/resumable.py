"""Requests that go on while the API process restarts, with all that they have generated.

The next API process adds the same requests again, and gets their outputs from the first one on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from core.api.execution import EngineRequest, RequestDelta, StepOutputs
from core.api.features import PendingRequest

NAME: Final = "resumable"
"""Keyword of `AsyncLLM.generate`, and the payload of such requests."""
KEEP_S: Final = 60.0
"""Seconds for which requests go on without an API process that adds them again."""


class Admission:
    """Admission half: marks requests that go on without their API process."""

    keywords = (NAME,)

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with the mark, if the caller wants it."""
        if not request.plugin_fields[NAME]:
            return request
        return replace(request, features={**request.features, NAME: b"1"})


@dataclass(slots=True)
class _Outputs:
    """Outputs of one request so far: deltas, and runs of token ids between them."""

    items: list[RequestDelta | list[int]] = field(default_factory=list)
    is_claimed: bool = True
    is_finished: bool = False

    def add(self, delta: RequestDelta) -> None:
        self.items.append(delta)
        self.is_finished = delta.finish_reason is not None

    def add_tokens(self, tokens: Iterable[int]) -> None:
        if not self.items or not isinstance(self.items[-1], list):
            self.items.append([])
        last = self.items[-1]
        if isinstance(last, list):
            last.extend(tokens)

    def deltas(self, request_id: str) -> list[RequestDelta]:
        return [
            RequestDelta(request_id=request_id, token_ids=list(item))
            if isinstance(item, list)
            else item
            for item in self.items
        ]


class RequestLedger:
    """Outputs of the resumable requests. `lock` guards it and the order of sent outputs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock: Final = threading.RLock()
        self._clock = clock
        self._outputs: dict[str, _Outputs] = {}
        self._num_unclaimed = 0
        self._expires_s: float | None = None

    def open(self, requests: Sequence[EngineRequest]) -> None:
        """Record the outputs of resumable requests, those of earlier engines included."""
        for each in requests:
            if NAME in each.features:
                outputs = self._outputs[each.request_id] = _Outputs()
                if each.output_token_ids:
                    outputs.add_tokens(each.output_token_ids)

    def unclaimed(self) -> list[str]:
        """Return the requests that no API process has added again yet."""
        return [name for name, outputs in self._outputs.items() if not outputs.is_claimed]

    def close(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have ended."""
        for request_id in request_ids:
            outputs = self._outputs.pop(request_id, None)
            self._num_unclaimed -= outputs is not None and not outputs.is_claimed

    def record(self, outputs: StepOutputs) -> StepOutputs:
        """Record the outputs of a step; return those of requests that an API process has."""
        if not self._outputs:
            return outputs
        counts = outputs.counts or [1] * len(outputs.request_ids)
        position = 0
        for request_id, count in zip(outputs.request_ids, counts, strict=True):
            found = self._outputs.get(request_id)
            if found is not None:
                found.add_tokens(outputs.token_ids[position : position + count])
            position += count
        for delta in outputs.deltas:
            if (found := self._outputs.get(delta.request_id)) is not None:
                found.add(delta)
        sent = outputs
        if self._num_unclaimed:
            sent = StepOutputs(deltas=[each for each in outputs if self._is_claimed(each)])
        self.close(
            each.request_id
            for each in outputs.deltas
            if each.finish_reason is not None and self._is_claimed(each)
        )
        return sent

    def _is_claimed(self, delta: RequestDelta) -> bool:
        found = self._outputs.get(delta.request_id)
        return found is None or found.is_claimed

    def on_server_death(self) -> None:
        """Hold the outputs of all requests until they are added again."""
        for outputs in self._outputs.values():
            outputs.is_claimed = False
        self._num_unclaimed = len(self._outputs)
        self._expires_s = self._clock() + KEEP_S

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._outputs

    def claim(self, requests: Sequence[EngineRequest]) -> list[RequestDelta] | None:
        """Return all outputs of requests that go on; None if one of them does not."""
        found = [self._outputs.get(each.request_id) for each in requests]
        if not all(each is not None and not each.is_claimed for each in found):
            return None
        deltas = []
        for request, outputs in zip(requests, found, strict=True):
            if outputs is not None:
                outputs.is_claimed = True
                self._num_unclaimed -= 1
                deltas += outputs.deltas(request.request_id)
        self.close(each.request_id for each in deltas if each.finish_reason is not None)
        return deltas

    def expired(self) -> list[str]:
        """Return the requests that no API process has added again in time, and forget them."""
        if not self._num_unclaimed or self._expires_s is None or self._clock() < self._expires_s:
            return []
        found = [name for name, outputs in self._outputs.items() if not outputs.is_claimed]
        self.close(found)
        return found
