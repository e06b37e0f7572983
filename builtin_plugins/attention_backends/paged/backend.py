"""Paged attention by the C++ library, which writes and reads KV blocks in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

import torch
from core_kernels.attention import CACHE_FORMATS, AttentionStep
from core_kernels.library import load_library
from core_kernels.selection import LANES, SelectionOps

from builtin_plugins.attention_backends.common.look_ahead import LookAheadPlan, attend_spans
from builtin_plugins.attention_backends.common.quantized_kv import (
    DTYPE_MAX,
    KV_DTYPES,
    as_bytes,
    dequantize_kv,
)
from builtin_plugins.attention_backends.torch_sdpa.backend import TorchAttention
from core.api.models import AttentionBackend, AttentionInputs
from core.model_spec.attention_params import AttentionParams, LookAheadSpan
from core.model_spec.kv import KVSpec


def make_backend() -> AttentionBackend:
    """Return the backend, or the torch backend if the C++ library is unavailable."""
    library = load_library()
    return TorchAttention() if library is None else PagedAttention(library)


class PagedAttention:
    """Paged attention on CPUs, batch invariant: a token's result depends only on its sequence.

    A block stores each head's keys, then each head's values.
    """

    graph_support = "none"
    device_lengths = True
    kv_dtypes = KV_DTYPES
    kv_scales = True
    slot_tokens = True

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._selection = SelectionOps(library)

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, kv_heads, vectors, block_size, row_size]."""
        return (num_blocks, spec.kv_heads, spec.vectors, block_size, spec.row_size)

    def prepare(self, inputs: AttentionInputs) -> AttentionStep:
        """Return the step in the library's form."""
        lengths = inputs.kv_lens
        if inputs.slack is not None and inputs.lengths is not None:
            lengths = inputs.lengths.tolist()  # already known on a CPU
        where = inputs.block_table, inputs.slots, inputs.block_size, inputs.slot_tokens
        return AttentionStep(self._library, inputs.query_starts, lengths, *where)

    def look_ahead(self, plan: AttentionStep, spans: Sequence[LookAheadSpan]) -> LookAheadPlan:
        """Return the plan with spans of tokens that see ahead."""
        lengths = plan.lengths.tolist()
        where = plan.starts.tolist(), lengths, plan.tables, plan.facts.block_size
        return LookAheadPlan(plan, *where, spans)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: AttentionStep | LookAheadPlan,
    ) -> torch.Tensor:
        """Write keys and values, then compute attention for all tokens."""
        if isinstance(plan, LookAheadPlan):
            out = self.attend(params, query, key, value, cache, plan.plan)
            read = partial(self.read_kv, params, cache, dtype=query.dtype)
            return attend_spans(params, query, plan, read, out)
        sinks = params.sinks
        dtype = query.dtype if cache.dtype in CACHE_FORMATS else cache.dtype
        out = plan.attend(
            query.to(dtype),
            key.to(dtype),
            value.to(dtype),
            cache,
            scale=params.scale,
            window=params.window,
            chunk=params.chunk,
            softcap=params.softcap,
            alibi=params.alibi,
            sinks=sinks if sinks is None or sinks.dtype is torch.float32 else sinks.float(),
            causal=params.causal,
            value_size=params.value_size,
            key_scale=params.key_scale,
            value_scale=params.value_scale,
        )
        return out.to(query.dtype)

    def copy_latents(
        self, cache: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, out: torch.Tensor
    ) -> bool:
        """Copy the latents at int32 positions [n] of one sequence, with the blocks `table`, to the
        first slots of `out`, a cache of one block.

        Returns False if it cannot; then `read_kv` reads them.
        """
        return self._selection.copy_keys(cache, table, positions, out)

    def read_kv(
        self,
        params: AttentionParams,
        cache: torch.Tensor,
        slots: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return keys and values [n, vectors, kv_heads, head_size] of slots [n], in `dtype`."""
        block_size, row_size = cache.shape[3:]
        blocks = slots // block_size
        at = slots % block_size
        if cache.dtype in DTYPE_MAX or block_size % LANES or row_size % LANES:
            rows = as_bytes(cache)[blocks, :, :, at]  # [n, kv_heads, vectors, row_size]
            return dequantize_kv(params, rows.transpose(1, 2), cache, dtype)
        # The unit layout: keys in tiles of sixteen, values in rows of units.
        unit = 2 if cache.dtype is torch.bfloat16 else 1
        flat = cache.flatten(3)
        words = flat[:, :, 0].view(torch.int32 if unit == 2 else cache.dtype)
        tiles = words.view(*cache.shape[:2], block_size // LANES, row_size // unit, LANES)
        keys = tiles[blocks, :, at // LANES, :, at % LANES].view(cache.dtype)
        if cache.shape[2] == 1:
            return keys[:, None].to(dtype)
        units = flat[:, :, 1].view(*cache.shape[:2], block_size // unit, row_size, unit)
        values = units[blocks, :, at // unit, :, at % unit]
        return torch.stack((keys, values), dim=1).to(dtype)
