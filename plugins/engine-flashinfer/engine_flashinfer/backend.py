"""Paged attention with FlashInfer: layers with equal attention parameters share a step's plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import KVSpec

WORKSPACE_BYTES: Final = 128 << 20
"""Memory for the partial sums of one call; the value of the library's examples."""
IN_FLIGHT: Final = 2
"""Number of steps that may run at once; each reads its planner's host memory until its end."""


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Attention parameters that a FlashInfer plan depends on."""

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
    """The inputs of one KV cache group in one step."""

    inputs: AttentionInputs
    planners: dict[PlanKey, Any] = field(default_factory=dict)
    """FlashInfer wrappers planned for this step."""


class FlashInferAttention:
    """Attention backend with a cache of shape [num_blocks, 2, block_size, kv_heads, head_size]."""

    graph_support = "none"

    def __init__(self) -> None:
        # slow to import and optional
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        self._make: Final[Callable[[torch.Tensor, str], Any]] = BatchPrefillWithPagedKVCacheWrapper
        self._workspace: torch.Tensor | None = None
        self._planners: dict[PlanKey, list[Any]] = {}

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, 2, block_size, kv_heads, head_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> Plan:
        """Return the plan of one step; the first layer of each `PlanKey` plans the
        library's call.
        """
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
        """Write keys and values to the cache and attend for all sequences in one call."""
        inputs = plan.inputs
        if len(key):
            blocks = inputs.slots // inputs.block_size
            offsets = inputs.slots % inputs.block_size
            cache[blocks, 0, offsets] = key
            cache[blocks, 1, offsets] = value
        if not len(query):
            return torch.empty_like(query)
        key_of_plan = PlanKey(
            params.heads,
            params.kv_heads,
            params.head_size,
            params.scale,
            params.window,
            params.softcap,
            params.causal,
            query.dtype,
        )
        planner = plan.planners.get(key_of_plan)
        if planner is None:
            planner = self._plan_step(key_of_plan, plan, query.device)
            plan.planners[key_of_plan] = planner
        out: torch.Tensor = planner.run(query.contiguous(), cache)
        return out

    def _plan_step(self, params: PlanKey, plan: Plan, device: torch.device) -> Any:
        """Return a planner with the step planned: the least recently used one."""
        if self._workspace is None:
            self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        planners = self._planners.setdefault(params, [])
        if len(planners) >= IN_FLIGHT:
            planner = planners.pop(0)
        else:
            planner = self._make(self._workspace, "NHD")
        planners.append(planner)
        planner.plan(
            torch.tensor(plan.inputs.query_starts, dtype=torch.int32),
            *_pages(plan.inputs, params.window),
            params.heads,
            params.kv_heads,
            params.head_size,
            plan.inputs.block_size,
            causal=params.causal,
            sm_scale=params.scale,
            window_left=-1 if params.window is None else params.window - 1,
            logits_soft_cap=params.softcap,
            q_data_type=params.dtype,
            kv_data_type=params.dtype,
        )
        return planner


def _pages(
    inputs: AttentionInputs, window: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return FlashInfer's page table of a step.

    Returns the cumulative number of blocks [num_seqs + 1] int32, the block numbers (on the
    device) and the number of tokens in each sequence's last block [num_seqs] int32. Blocks before
    the window are left out, because their table entries may be stale. Distances are unchanged,
    because they are counted from the end.
    """
    size = inputs.block_size
    device = inputs.block_table.device
    lengths = torch.tensor(inputs.kv_lens, dtype=torch.int64)
    query_lengths = torch.tensor(inputs.query_starts, dtype=torch.int64).diff()
    num_blocks = (lengths + size - 1) // size
    if window is None:
        first_blocks = torch.zeros_like(num_blocks)
    else:
        first_blocks = (lengths - query_lengths - window + 1).clamp(min=0) // size
    cumulative = torch.zeros(len(num_blocks) + 1, dtype=torch.int64)
    torch.cumsum(num_blocks - first_blocks, 0, out=cumulative[1:])
    rows = torch.repeat_interleave(torch.arange(len(num_blocks)), num_blocks - first_blocks)
    columns = torch.arange(len(rows)) - cumulative[rows] + first_blocks[rows]
    numbers = inputs.block_table[
        rows.to(device, non_blocking=True), columns.to(device, non_blocking=True)
    ]
    last_lengths = lengths - (num_blocks - 1).clamp(min=0) * size
    return cumulative.int(), numbers, last_lengths.int()
