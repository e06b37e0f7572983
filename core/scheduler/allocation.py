"""KV blocks for running requests: allocation ahead of time, and preemption
when blocks run out.
"""

from __future__ import annotations

from typing import Final

from core.kv.manager import Appended
from core.scheduler.admission import LOOK_AHEAD_TOKENS
from core.scheduler.columns import Ints
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.plan_builder import DecodeStep, PlanBuilder
from core.scheduler.request import Request


class BlockAllocator:
    """Allocates KV blocks; preempts the lowest-ranked running request when
    they run out.
    """

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life
        self._kv: Final = life.kv
        self._batch: Final = life.batch

    def allocate_decode(self, builder: PlanBuilder, decode: DecodeStep, needs_blocks: Ints) -> None:
        """Allocate blocks in rank order; a row without room for draft tokens drops them."""
        is_plentiful = self._kv.is_plentiful
        rows = decode.rows.tolist()
        ranked = []
        for index in needs_blocks.tolist():
            request = self._batch.at(rows[index])
            if request is not None:
                ranked.append((request.rank, index))
        for _, index in sorted(ranked):
            request = self._batch.at(rows[index])
            if request is not None:  # else preempted for a higher-ranked one
                self._allocate_row(builder, decode, index, request, is_plentiful)

    def _allocate_row(
        self,
        builder: PlanBuilder,
        decode: DecodeStep,
        index: int,
        request: Request,
        is_plentiful: bool,
    ) -> None:
        kv = self._kv
        lease = request.lease
        start = request.planned
        end = int(decode.ends[index])
        drafts = 0
        if decode.num_draft_tokens is not None:
            drafts = int(decode.num_draft_tokens[index])
        if kv.is_windowed:
            # Blocks that leave the window must be published before; others are at the
            # end.
            kv.publish(lease, request.tokens, min(start, request.num_tokens))
            kv.trim(lease, start)
        appended = None
        if is_plentiful or drafts:
            # Allocating ahead makes the next allocation rarer.
            target = max(end, start + LOOK_AHEAD_TOKENS) if is_plentiful else end
            appended = kv.extend(lease, start, min(target, request.limit - 1))
        if appended is None:
            decode.drop_draft_tokens(index)
            appended = self.allocate_or_preempt(builder, request, start, end - drafts)
        if appended is not None:
            builder.add_blocks(request, appended)

    def allocate_or_preempt(
        self, builder: PlanBuilder, request: Request, start: int, end: int
    ) -> Appended | None:
        """Return the blocks appended for start..end, preempting lower-ranked
        requests.

        None if the request cannot compute in this step.
        """
        while True:
            appended = self._kv.extend(request.lease, start, end)
            if appended is not None:
                return appended
            builder.out_of_blocks = True
            if self._batch.is_draining or self._kv.will_fit(request.lease, start, end):
                # steps in flight will free blocks without a preemption
                return None
            victim = self._batch.lowest_ranked()
            builder.preempted_rows.add(victim.row)
            self._life.preempt(victim)
            if victim is request:
                return None
