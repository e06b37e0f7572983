"""One request's way from the engine to its reader: holds at most one output, merged while nobody
reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from core.types import CompletionOutput, RequestOutput


class Mailbox:
    """Asyncio-side slot for the outputs of one request.

    A slow reader costs no memory beyond its own text: deltas are merged, cumulative outputs
    replaced.
    """

    __slots__ = ("_delta", "_error", "_reader", "_waiting")

    def __init__(self, delta: bool) -> None:
        self._delta = delta
        self._waiting: RequestOutput | None = None
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        """Of a reader that waits."""

    def to(self, taker: Callable[[CompletionOutput], bool]) -> Callable[[CompletionOutput], bool]:
        """Return what shows something new to the taker, if the reader waits and has read all else,
        and says whether it was taken.
        """
        return lambda completion: (
            self._reader is not None and self._waiting is None and taker(completion)
        )

    def put(self, output: RequestOutput) -> None:
        """Add an output; call from the event loop's thread."""
        if self._waiting is None or not self._delta:
            self._waiting = output
        else:
            self._waiting = merge(self._waiting, output)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Let the reader raise `error` once it has read what is here."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        reader = self._reader
        self._reader = None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def accepted(self, answer: asyncio.Future[None]) -> None:
        """Take the engine's answer to the request: let the reader raise what was said against it."""
        if not answer.cancelled() and (error := answer.exception()) is not None:
            self.fail(error)

    async def get(self) -> RequestOutput:
        """Wait for the next output; one reader at a time."""
        while self._waiting is None:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output = self._waiting
        self._waiting = None
        return output


def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Return one output that says what two successive deltas say."""
    by_index = {completion.index: completion for completion in first.outputs}
    for new in second.outputs:
        old = by_index.get(new.index)
        by_index[new.index] = new if old is None else _join(old, new)
    second.outputs = list(by_index.values())
    return second


def _join(old: CompletionOutput, new: CompletionOutput) -> CompletionOutput:
    logprobs = new.logprobs if old.logprobs is None else old.logprobs + (new.logprobs or [])
    at = len(old.text)
    ids = [*old.token_ids, *new.token_ids]
    spans = [*old.special_spans, *((at + start, at + end) for start, end in new.special_spans)]
    return replace(
        new, text=old.text + new.text, token_ids=ids, logprobs=logprobs, special_spans=spans
    )
