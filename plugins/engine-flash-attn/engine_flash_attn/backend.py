"""Paged attention by flash-attn 2: one call for all sequences of a step, whether they decode or
read prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import torch

from core.api import AttentionInputs, AttentionParams, ConfigError, EngineConfig, KVSpec

PAGE: Final = 256
"""Tokens of a block that the kernels take, or a multiple."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The blocks that layers read, which see as far."""

    table: torch.Tensor
    """[num_seqs, blocks] int32."""
    starts: torch.Tensor
    """[num_seqs + 1] int32: what lengths add up to."""
    most: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One group in one step."""

    inputs: AttentionInputs
    query_starts: torch.Tensor
    """[num_seqs + 1] int32."""
    most_queries: int
    seen: dict[int | None, Seen] = field(default_factory=dict)
    """By window."""


class FlashAttention:
    """Keys of all blocks, then their values: [num_blocks, 2, block_size, kv_heads, head_size]."""

    graph_support = "none"

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ConfigError` for blocks that the kernels do not take."""
        size = config.cache.block_size
        if size % PAGE:
            raise ConfigError(
                f"--block-size {size}: flash-attn reads blocks of {PAGE} tokens, or of a multiple "
                "of that. Say --block-size "
                f"{PAGE}, or take another --attention-backend."
            )
        from flash_attn import flash_attn_varlen_func  # lazy: it is heavy, and not everywhere

        self._attend: Final[Callable[..., torch.Tensor]] = flash_attn_varlen_func

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, 2, block_size, kv_heads, head_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> Plan:
        """Say where queries begin."""
        places = torch.tensor(inputs.query_starts, dtype=torch.int32)
        most = max((end - start for start, end in pairwise(inputs.query_starts)), default=0)
        return Plan(inputs, places.to(inputs.slots.device, non_blocking=True), most)

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
        seen = plan.seen.get(params.window)
        if seen is None:
            seen = plan.seen[params.window] = _seen(inputs, params.window)
        return self._attend(
            query,
            cache[:, 0],
            cache[:, 1],
            plan.query_starts,
            seen.starts,
            plan.most_queries,
            seen.most,
            softmax_scale=params.scale,
            causal=params.causal,
            window_size=(
                -1 if params.window is None else params.window - 1,
                0 if params.causal else -1,
            ),
            softcap=params.softcap or 0.0,
            alibi_slopes=params.alibi,
            block_table=seen.table,
        )


def _seen(inputs: AttentionInputs, window: int | None) -> Seen:
    """Return the blocks that a window shows; what the table says of those before it is stale.

    Distances stay, since they are counted from the end.
    """
    device = inputs.block_table.device
    lengths, places = (
        torch.tensor(numbers, dtype=torch.int64)
        for numbers in (inputs.kv_lens, inputs.query_starts)
    )
    table = inputs.block_table
    if window is not None:
        firsts = (lengths - places.diff() - window + 1).clamp(min=0) // inputs.block_size
        shifted = firsts[:, None] + torch.arange(
            table.shape[1]
        )  # behind the last block the last once more: it is not read
        table = table.gather(1, shifted.clamp(max=table.shape[1] - 1).to(device, non_blocking=True))
        lengths = lengths - firsts * inputs.block_size
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    torch.cumsum(lengths, 0, out=starts[1:])
    return Seen(
        table, starts.to(device, non_blocking=True), int(lengths.max()) if len(lengths) else 0
    )
