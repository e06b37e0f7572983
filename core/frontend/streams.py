"""Delivers the engine's outputs from the client's thread to the readers in
the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from core.contracts.admission import PendingRequest
from core.errors import EngineDead, InvalidRequest, public_message
from core.frontend.mailbox import Mailbox
from core.frontend.metrics import RequestMeter
from core.frontend.outputs import OutputProcessor
from core.step import EngineRequest, RequestDelta, StepOutputs
from core.types import CompletionOutput, RequestOutputKind


class OutputStreams:
    """The open requests of an `AsyncLLM`, each with the mailbox of its
    reader.

    `deliver_soon` and `died_soon` may be called from any thread, all else in the event
    loop.
    """

    outputs: OutputProcessor
    _meter: RequestMeter | None
    _abort: Callable[[Sequence[str]], object]

    def __init__(self) -> None:
        self._mailboxes: dict[str, Mailbox] = {}
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._undelivered: deque[StepOutputs] = deque()

    def attach(
        self,
        outputs: OutputProcessor,
        meter: RequestMeter | None,
        abort: Callable[[Sequence[str]], object],
    ) -> None:
        """Complete the object; `abort` aborts engine requests."""
        self.outputs = outputs
        self._meter = meter
        self._abort = abort

    def __len__(self) -> int:
        """Return the number of requests with a reader."""
        return len(self._mailboxes)

    def open_ids(self) -> list[str]:
        """Return the ids of requests with a reader."""
        return list(self._mailboxes)

    def open(self, pending: PendingRequest, requests: Sequence[EngineRequest]) -> Mailbox:
        """Register a request and return its mailbox.

        Raises `InvalidRequest` for an id in use, `RuntimeError` in a second event loop.
        """
        request_id = pending.request_id
        if request_id in self.outputs:
            raise InvalidRequest("request_id", f"{request_id!r} is in use by another request.")
        running = asyncio.get_running_loop()
        if self._mailboxes and self._event_loop is not running:
            raise RuntimeError(
                "requests of another event loop are open; use one event loop for one engine."
            )
        self._event_loop = running
        self.outputs.add(pending, requests)
        streams = requests[0].sampling.output_kind is RequestOutputKind.DELTA
        mailbox = Mailbox(streams)
        self._mailboxes[request_id] = mailbox
        return mailbox

    def drop(self, request_id: str) -> None:
        """Remove a request that the engine does not have."""
        self.outputs.drop(request_id)
        self._mailboxes.pop(request_id, None)

    def abandon(self, request_id: str) -> None:
        """Remove a request without a reader and abort it in the engine."""
        self._mailboxes.pop(request_id, None)
        engine_ids = self.outputs.engine_ids(request_id)
        client = self.outputs.drop(request_id)
        if engine_ids:
            self._abort(engine_ids)
        if client is not None and self._meter is not None:
            self._meter.finished(client, "abort", time.monotonic())

    def set_delivery_callback(
        self, request_id: str, callback: Callable[[CompletionOutput], bool]
    ) -> None:
        """Offer deltas to a callback while the reader waits; see `AsyncLLM`."""
        # None after the request's end
        if mailbox := self._mailboxes.get(request_id):
            self.outputs.set_delivery_callback(request_id, mailbox.try_deliver(callback))

    def deliver(self, deltas: Sequence[RequestDelta]) -> None:
        """Deliver deltas to the readers."""
        outputs, aborts = self.outputs.process(deltas, time.monotonic())
        if aborts:
            self._abort(aborts)
        for output in outputs:
            if mailbox := self._mailboxes.get(output.request_id):
                mailbox.put(output)
                if output.finished:
                    del self._mailboxes[output.request_id]

    def fail_all(self, error: BaseException) -> None:
        """Raise `EngineDead` in all readers."""
        for mailbox in self._mailboxes.values():
            mailbox.fail(EngineDead(f"the engine has stopped: {public_message(error)}"))
        self._mailboxes.clear()

    # --- from the client's thread

    def deliver_soon(self, outputs: StepOutputs) -> None:
        """Deliver a step's outputs in the event loop."""
        if outputs:
            self._undelivered.append(outputs)
            self._call_soon(self._deliver_pending)

    def died_soon(self, error: BaseException) -> None:
        """Fail all readers in the event loop."""
        self._call_soon(self.fail_all, error)

    def _call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._event_loop is None:
            return
        try:
            self._event_loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # closed: its readers have ended
            self._undelivered.clear()

    def _deliver_pending(self) -> None:
        """Deliver all outputs since the last call, merged per request."""
        if pending := [self._undelivered.popleft() for _ in range(len(self._undelivered))]:
            self.deliver([delta for outputs in pending for delta in outputs])
