"""Paged attention by FlashInfer: a step is planned once for all layers that see alike, when the
first of them attends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from core.api import AttentionInputs, AttentionParams, KVSpec

WORKSPACE_BYTES: Final = 128 << 20
"""Partial sums of one call: the size of the library's own examples."""
IN_FLIGHT: Final = 2
"""Steps that may be planned before the first of them has ended: a planner's memory on the host is
read until then.
"""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the library plans by, beside the sequences."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None
    softcap: float | None
    causal: bool
    dtype: torch.dtype


@dataclass(slots=True)
class Plan:
    """One group in one step."""

    inputs: AttentionInputs
    planned: dict[Reach, Any] = field(default_factory=dict)


class FlashInferAttention:
    """A block has the keys of its tokens, then their values: [num_blocks, 2, block_size, kv_heads,
    head_size].
    """

    graph_support = "none"

    def __init__(self) -> None:
        from flashinfer import (
            BatchPrefillWithPagedKVCacheWrapper,
        )  # lazy: it is heavy, and not everywhere

        self._make: Final[Callable[[torch.Tensor, str], Any]] = BatchPrefillWithPagedKVCacheWrapper
        self._workspace: torch.Tensor | None = None
        self._planners: dict[Reach, list[Any]] = {}

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, 2, block_size, kv_heads, head_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> Plan:
        """Leave it to the first layer that attends: what is planned depends on what layers see."""
        return Plan(inputs)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Plan,
    ) -> torch.Tensor:
        """Write keys and values, then let the library attend to all sequences at once."""
        inputs = plan.inputs
        if len(key):
            blocks = inputs.slots // inputs.block_size
            offsets = inputs.slots % inputs.block_size
            cache[blocks, 0, offsets] = key
            cache[blocks, 1, offsets] = value
        if not len(query):
            return torch.empty_like(query)
        reach = Reach(
            params.heads, params.kv_heads, params.head_size, params.scale, params.window, params.softcap, params.causal,
            query.dtype,
        )  # fmt: skip
        planner = plan.planned.get(reach)
        if planner is None:
            planner = plan.planned[reach] = self._planned(reach, plan, query.device)
        found: torch.Tensor = planner.run(query.contiguous(), cache)
        return found

    def _planned(self, reach: Reach, plan: Plan, device: torch.device) -> Any:
        """Return a planner that knows the step: the one that has rested longest."""
        if self._workspace is None:
            self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        resting = self._planners.setdefault(reach, [])
        planner = (
            resting.pop(0) if len(resting) >= IN_FLIGHT else self._make(self._workspace, "NHD")
        )
        resting.append(planner)
        planner.plan(
            torch.tensor(plan.inputs.query_starts, dtype=torch.int32),
            *_pages(plan.inputs, reach.window),
            reach.heads,
            reach.kv_heads,
            reach.head_size,
            plan.inputs.block_size,
            causal=reach.causal,
            sm_scale=reach.scale,
            window_left=-1 if reach.window is None else reach.window - 1,
            logits_soft_cap=reach.softcap,
            q_data_type=reach.dtype,
            kv_data_type=reach.dtype,
        )
        return planner


def _pages(
    inputs: AttentionInputs, window: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return how many blocks come before each sequence's, [num_seqs + 1] int32, all of their
    numbers, on the device, and how many
    tokens each one's last has, [num_seqs] int32.

    Blocks before all that a window shows are left out: what the table says of them is stale.
    Distances stay, since they are counted from the end.
    """
    size = inputs.block_size
    device = inputs.block_table.device
    lengths, places = (
        torch.tensor(numbers, dtype=torch.int64)
        for numbers in (inputs.kv_lens, inputs.query_starts)
    )
    ends = (lengths + size - 1) // size
    firsts = (
        torch.zeros_like(ends)
        if window is None
        else (lengths - places.diff() - window + 1).clamp(min=0) // size
    )
    starts = torch.zeros(len(ends) + 1, dtype=torch.int64)
    torch.cumsum(ends - firsts, 0, out=starts[1:])
    row = torch.repeat_interleave(torch.arange(len(ends)), ends - firsts)
    at = torch.arange(len(row)) - starts[row] + firsts[row]
    numbers = inputs.block_table[
        row.to(device, non_blocking=True), at.to(device, non_blocking=True)
    ]
    return starts.int(), numbers, (lengths - (ends - 1).clamp(min=0) * size).int()
