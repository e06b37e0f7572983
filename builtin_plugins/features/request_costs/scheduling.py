"""Scheduler half: divides the time of steps, and the KV cache, among the requests that use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from builtin_plugins.features.request_costs.messages import NAME, Cost, StepCost
from core.api.execution import StepPlan

_decode = msgspec.msgpack.Decoder(StepCost).decode


@dataclass(slots=True)
class _Account:
    """Costs of a sequence, and the blocks that it holds."""

    cost: Cost = field(default_factory=Cost)
    held_bytes: int = 0
    since_s: float = 0.0
    """When `held_bytes` last changed."""

    def hold(self, num_bytes: int, now_s: float) -> None:
        """Settle what was held until now, and hold so many bytes from now on."""
        self.cost.kv_byte_s += self.held_bytes * (now_s - self.since_s)
        self.held_bytes = num_bytes
        self.since_s = now_s


class CostAccounts:
    """Accounts of all sequences in the engine."""

    name = NAME

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._rows: dict[int, _Account] = {}
        self._steps: dict[int, Sequence[tuple[_Account, int]]] = {}
        """Accounts, and their numbers of tokens, of each step without a result."""
        self._group_bytes: Sequence[int] = ()

    def attach(self, scheduler: Any) -> None:
        """Read the size of a block in each KV group."""
        layout = scheduler.kv.layout
        self._group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]

    def arrived(self, request: Any) -> None:
        """Open an account."""
        self._accounts[request.request_id] = _Account()

    def planned(self, plan: StepPlan) -> bytes | None:
        """Follow the blocks of rows; return the step's number if it computes anything."""
        self._move_blocks(plan)
        num_decodes = len(plan.decode_rows)
        drafts = plan.num_draft_tokens[:num_decodes] or [0] * num_decodes
        rows = [*plan.decode_rows, *plan.rows]
        counts = [*(1 + num_drafts for num_drafts in drafts), *plan.counts]
        entries = [(self._rows[row], count) for row, count in zip(rows, counts, strict=True)]
        if not entries:
            return None
        for account, count in entries:
            account.cost.computed_tokens += count
        self._steps[plan.step] = entries
        return plan.step.to_bytes(8, "little")

    def result(self, payload: bytes) -> None:
        """Divide a rank's processor time by the tokens of the step."""
        report = _decode(payload)
        for step in [step for step in self._steps if step < report.step]:
            del self._steps[step]
        entries = self._steps.get(report.step, ())
        num_tokens = sum(count for _, count in entries)
        for account, count in entries:
            account.cost.cpu_s += report.cpu_s * count / num_tokens

    def finished(self, request: Any) -> bool:
        """Send a sequence's costs with its last output."""
        account = self._accounts.pop(request.request_id)
        account.hold(0, self._clock())
        request.feature_outputs[NAME] = msgspec.msgpack.encode(account.cost)
        return False

    def _move_blocks(self, plan: StepPlan) -> None:
        """Count the blocks of rows that end, begin or grow."""
        if not (plan.ended or plan.new or plan.blocks):
            return
        now_s = self._clock()
        for row in plan.ended:
            account = self._rows.pop(row, None)
            if account is not None:
                account.hold(0, now_s)
        for new in plan.new:
            account = self._accounts.get(new.request_id)
            if account is None:  # it ended between the plan and this call
                account = _Account()
            self._rows[new.row] = account
            account.hold(sum(map(self._bytes_of, range(len(new.blocks)), new.blocks)), now_s)
        for row, group, blocks in plan.blocks:
            account = self._rows[row]
            account.hold(account.held_bytes + self._bytes_of(group, blocks), now_s)

    def _bytes_of(self, group: int, blocks: Sequence[int]) -> int:
        """Return the bytes of blocks; 0 is no block."""
        return self._group_bytes[group] * sum(1 for block in blocks if block)
