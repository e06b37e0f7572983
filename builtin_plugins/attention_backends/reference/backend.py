"""Reference paged attention in plain torch, one sequence at a time; the oracle of all backends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from builtin_plugins.attention_backends.common.dense import attend_dense, first_visible
from builtin_plugins.attention_backends.common.look_ahead import LookAheadPlan, attend_spans
from builtin_plugins.attention_backends.common.quantized_kv import (
    KV_DTYPES,
    as_bytes,
    dequantize_kv,
    quantize_kv,
)
from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams, LookAheadSpan
from core.model_spec.kv import KVSpec


class ReferenceAttention:
    """Paged attention with blocks of [vectors, block_size, kv_heads, row_size]."""

    graph_support = "none"
    kv_dtypes = KV_DTYPES
    kv_scales = True
    slot_tokens = True

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, vectors, block_size, kv_heads, row_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.row_size)

    def prepare(self, inputs: AttentionInputs) -> AttentionInputs:
        """Return the inputs; no plan is needed."""
        return inputs

    def look_ahead(self, plan: AttentionInputs, spans: Sequence[LookAheadSpan]) -> LookAheadPlan:
        """Return the plan with spans of tokens that see ahead."""
        where = plan.query_starts, plan.kv_lens, plan.block_table, plan.block_size
        return LookAheadPlan(plan, *where, spans)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: AttentionInputs | LookAheadPlan,
    ) -> torch.Tensor:
        """Write keys and values, then compute attention of each sequence."""
        if isinstance(plan, LookAheadPlan):
            out = self.attend(params, query, key, value, cache, plan.plan)
            read_kv = partial(self.read_kv, params, cache, dtype=query.dtype)
            return attend_spans(params, query, plan, read_kv, out)
        blocks = plan.slots // plan.block_size
        offsets = plan.slots % plan.block_size
        own = key[:, None] if params.value_size is not None else torch.stack((key, value), dim=1)
        rows = quantize_kv(params, own, cache)
        stored = as_bytes(cache)
        stored[blocks, :, offsets] = rows if plan.slot_tokens is None else rows[plan.slot_tokens]
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        for i, kv_len in enumerate(plan.kv_lens):
            start = plan.query_starts[i]
            end = plan.query_starts[i + 1]
            first = (
                first_visible(params, kv_len - (end - start)) // plan.block_size
                if params.causal
                else 0
            )
            table = plan.block_table[i, first : -(-kv_len // plan.block_size)]
            rows = (
                stored[table].transpose(1, 2).flatten(0, 1)
            )  # [tokens, vectors, kv_heads, row_size]
            read = dequantize_kv(params, rows, cache, query.dtype)
            keys = read[:, 0]
            values = read[:, -1, :, : params.value_size]
            seen = kv_len - first * plan.block_size
            positions = torch.arange(kv_len - (end - start), kv_len, device=query.device)
            out[start:end] = attend_dense(
                params,
                query[start:end],
                keys[:seen],
                values[:seen],
                positions,
                first * plan.block_size,
            )
        return out

    def read_kv(
        self,
        params: AttentionParams,
        cache: torch.Tensor,
        slots: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return keys and values [n, vectors, kv_heads, head_size] of slots [n], in `dtype`."""
        block_size = cache.shape[2]
        rows = as_bytes(cache)[slots // block_size, :, slots % block_size]
        return dequantize_kv(params, rows, cache, dtype)
