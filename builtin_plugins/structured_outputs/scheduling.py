"""The scheduler half: parks requests until their grammar is compiled, and tells the workers whose row is whose."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec

from builtin_plugins.structured_outputs.grammars import Grammars
from core.api import StepPlan, StructuredOutputsParams

NAME = "structured_outputs"


class RowNews(msgspec.Struct, array_like=True, frozen=True):
    """A constrained request that enters the batch."""

    row: int
    params: StructuredOutputsParams
    prompt_end: list[int]
    """The last tokens of the prompt: reasoning may end there."""
    output: list[int]
    """Tokens generated so far, by an earlier life or before a preemption."""
    stops: list[int]
    """Tokens that end it."""


class News(msgspec.Struct, array_like=True, frozen=True):
    """What a step changes for the workers."""

    ended: list[int]
    new: list[RowNews]
    soon: list[StructuredOutputsParams]
    """Constraints of requests that wait, for workers to begin compiling."""


PROMPT_END_TOKENS = 64
_encode = msgspec.msgpack.Encoder().encode


class Gate:
    """Asks nothing of unconstrained requests; looks at no running one."""

    name = NAME
    watches_tokens = False

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._scheduler: Any = None
        self._waiting: dict[str, Future[Any]] = {}
        self._soon: list[StructuredOutputsParams] = []
        self._rows: set[int] = set()

    def attach(self, scheduler: Any) -> None:
        """Remember whom to wake."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Let it start once its grammar is there. Raises what the compilation failed of."""
        params = request.sampling.structured_outputs
        if params is None:
            return True
        # The one it waited for: what has failed is not in the cache any more, and must not be tried again.
        future = self._waiting.pop(request.request_id, None) or self._grammars.get(params)
        if future.done():
            future.result()
            return True
        self._waiting[request.request_id] = future
        self._soon.append(params)
        future.add_done_callback(lambda _: self._scheduler.wake_soon(request.request_id))
        return False

    def finished(self, request: Any) -> bool:
        """Cancel a compilation that nobody else waits for."""
        future = self._waiting.pop(request.request_id, None)
        if future is not None and future not in self._waiting.values():
            future.cancel()
        return False

    def planned(self, plan: StepPlan) -> bytes | None:
        """Say which rows are constrained from this step on, and which no longer are."""
        if not (plan.new or plan.ended or self._soon):
            return None
        left = self._rows.intersection((*plan.ended, *(new.row for new in plan.new)))
        new = [
            RowNews(
                new.row,
                new.sampling.structured_outputs,
                new.token_ids[max(0, new.prompt_len - PROMPT_END_TOKENS) : new.prompt_len],
                new.token_ids[new.prompt_len :],
                [*new.eos_token_ids, *new.sampling.stop_token_ids],
            )
            for new in plan.new
            if new.sampling.structured_outputs is not None
        ]
        if not (left or new or self._soon):
            return None
        self._rows = (self._rows - left) | {row.row for row in new}
        soon, self._soon = self._soon, []
        return _encode(News(sorted(left), new, soon))
