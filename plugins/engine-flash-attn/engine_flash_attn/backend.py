"""Paged attention with flash-attn 2: one call for all sequences of a step, prefill and decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import torch

from core.api import ConfigError, EngineConfig
from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import KVSpec

PAGE: Final = 256
"""Tokens per block: the kernels accept multiples of it."""


@dataclass(frozen=True, slots=True)
class KVBlocks:
    """The blocks that layers with one attention window read in a step."""

    block_table: torch.Tensor
    """[num_seqs, blocks] int32."""
    cumulative_lengths: torch.Tensor
    """[num_seqs + 1] int32."""
    max_length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The inputs of one KV cache group in one step."""

    inputs: AttentionInputs
    query_starts: torch.Tensor
    """[num_seqs + 1] int32."""
    max_queries: int
    blocks: dict[int | None, KVBlocks] = field(default_factory=dict)
    """By attention window; filled by the first layer with the window."""


class FlashAttention:
    """Attention backend with a cache of shape [num_blocks, 2, block_size, kv_heads, head_size]."""

    graph_support = "none"

    def __init__(self, config: EngineConfig) -> None:
        """Raises `ConfigError` for a block size that the kernels do not support."""
        size = config.cache.block_size
        if size % PAGE:
            raise ConfigError(
                f"--block-size {size}: flash-attn needs a multiple of {PAGE} tokens. Use "
                f"--block-size {PAGE} or another --attention-backend."
            )
        from flash_attn import flash_attn_varlen_func  # slow to import and optional

        self._attend: Final[Callable[..., torch.Tensor]] = flash_attn_varlen_func

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, 2, block_size, kv_heads, head_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> Plan:
        """Return the plan of one step."""
        query_starts = torch.tensor(inputs.query_starts, dtype=torch.int32)
        max_queries = max((end - start for start, end in pairwise(inputs.query_starts)), default=0)
        return Plan(inputs, query_starts.to(inputs.slots.device, non_blocking=True), max_queries)

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
        read = plan.blocks.get(params.window)
        if read is None:
            read = plan.blocks[params.window] = _kv_blocks(inputs, params.window)
        return self._attend(
            query,
            cache[:, 0],
            cache[:, 1],
            plan.query_starts,
            read.cumulative_lengths,
            plan.max_queries,
            read.max_length,
            softmax_scale=params.scale,
            causal=params.causal,
            window_size=(
                -1 if params.window is None else params.window - 1,
                0 if params.causal else -1,
            ),
            softcap=params.softcap or 0.0,
            alibi_slopes=params.alibi,
            block_table=read.block_table,
        )


def _kv_blocks(inputs: AttentionInputs, window: int | None) -> KVBlocks:
    """Return the blocks inside a window; table entries before the window may be stale.

    Distances are unchanged, because they are counted from the end.
    """
    device = inputs.block_table.device
    lengths = torch.tensor(inputs.kv_lens, dtype=torch.int64)
    block_table = inputs.block_table
    if window is not None:
        query_lengths = torch.tensor(inputs.query_starts, dtype=torch.int64).diff()
        first_blocks = (lengths - query_lengths - window + 1).clamp(min=0) // inputs.block_size
        columns = first_blocks[:, None] + torch.arange(block_table.shape[1])
        columns = columns.clamp(max=block_table.shape[1] - 1)  # repeats of the last are not read
        block_table = block_table.gather(1, columns.to(device, non_blocking=True))
        lengths = lengths - first_blocks * inputs.block_size
    cumulative = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    torch.cumsum(lengths, 0, out=cumulative[1:])
    longest = int(lengths.max()) if len(lengths) else 0
    return KVBlocks(block_table, cumulative.to(device, non_blocking=True), longest)
