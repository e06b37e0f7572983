"""The slot between the engine and the reader of one request: holds up to one
merged output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from core.types import CompletionOutput, RequestOutput


class Mailbox:
    """Asyncio slot for the outputs of one request.

    A slow reader costs no memory beyond its own text: deltas are merged, cumulative
    outputs replaced.
    """

    __slots__ = ("_delta", "_error", "_reader", "_unread")

    def __init__(self, delta: bool) -> None:
        self._delta = delta
        self._unread: RequestOutput | None = None
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        """Future of a waiting reader."""

    def try_deliver(
        self, callback: Callable[[CompletionOutput], bool]
    ) -> Callable[[CompletionOutput], bool]:
        """Return a function that returns whether `callback` consumed a delta.

        The callback runs only while the reader waits and nothing is unread.
        """

        def deliver(completion: CompletionOutput) -> bool:
            return self._reader is not None and self._unread is None and callback(completion)

        return deliver

    def put(self, output: RequestOutput) -> None:
        """Add an output; call from the event loop's thread."""
        if self._unread is None or not self._delta:
            self._unread = output
        else:
            self._unread = merge(self._unread, output)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the reader after the unread output."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        reader = self._reader
        self._reader = None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def accepted(self, answer: asyncio.Future[None]) -> None:
        """Receive the engine's answer to the request; the reader raises its error."""
        if not answer.cancelled() and (error := answer.exception()) is not None:
            self.fail(error)

    async def get(self) -> RequestOutput:
        """Wait for the next output; one reader at a time."""
        while self._unread is None:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output = self._unread
        self._unread = None
        return output


def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Return one output for two successive deltas."""
    by_index = {completion.index: completion for completion in first.outputs}
    for new in second.outputs:
        old = by_index.get(new.index)
        by_index[new.index] = new if old is None else _join(old, new)
    second.outputs = list(by_index.values())
    return second


def _join(old: CompletionOutput, new: CompletionOutput) -> CompletionOutput:
    logprobs = new.logprobs if old.logprobs is None else old.logprobs + (new.logprobs or [])
    offset = len(old.text)
    moved = ((offset + start, offset + end) for start, end in new.special_spans)
    return replace(
        new,
        text=old.text + new.text,
        token_ids=[*old.token_ids, *new.token_ids],
        logprobs=logprobs,
        special_spans=[*old.special_spans, *moved],
    )
