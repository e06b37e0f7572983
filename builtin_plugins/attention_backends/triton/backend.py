"""Paged attention in Triton. A plan consists of tensors that are already on the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import torch
from core_kernels.triton import attention
from core_kernels.triton.attention_shapes import Layer, Step
from core_kernels.triton.block_copy import write_kv
from core_kernels.triton.qk_norm_rope_cache import write_qk_norm_rope

from builtin_plugins.attention_backends.common.look_ahead import LookAheadPlan, attend_spans
from builtin_plugins.attention_backends.triton.kernel_layer import kernel_layer
from builtin_plugins.attention_backends.triton.plan import Plan
from builtin_plugins.attention_backends.triton.sparse import TritonIndexPlan, TritonSparsePlan
from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams, LookAheadSpan, QkNormRope
from core.model_spec.kv import KVSpec

PROGRAMS_PER_PROCESSOR: Final = 3
"""Programs of a decode launch that a multiprocessor runs at a time."""
PROGRAMS_ELSEWHERE: Final = 4
"""Programs without a GPU, as in the Triton interpreter."""


class TritonAttention:
    """Paged attention with blocks of keys, then values: [num_blocks, vectors, block_size, kv_heads,
    head_size].
    """

    graph_support = "full"
    device_lengths = True
    slot_tokens = True

    def __init__(self) -> None:
        self._programs: int | None = None
        self._numbers = torch.empty(0)

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, vectors, block_size, kv_heads, head_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> Plan:
        """Return the tensors that the kernels read."""
        device = inputs.slots.device
        query_starts = inputs.query_starts
        num_tokens = query_starts[-1]
        num_seqs = len(query_starts) - 1
        lengths = inputs.lengths
        if lengths is None:
            lengths = torch.tensor(inputs.kv_lens).to(device, non_blocking=True)
        if num_tokens == num_seqs:
            starts = self._single_starts(num_seqs + 1, device)
        else:
            starts = torch.tensor(query_starts, dtype=torch.int32).to(device, non_blocking=True)
        decodes = any(end - start == 1 for start, end in pairwise(query_starts))
        step = Step(starts, lengths, inputs.block_table, inputs.block_size, num_tokens)
        return Plan(step, inputs.slots, decodes, num_tokens > num_seqs, inputs.slot_tokens, inputs)

    def _single_starts(self, count: int, device: torch.device) -> torch.Tensor:
        """Return 0, 1, 2, ...: the starts of sequences with one token, made once for all steps."""
        numbers = self._numbers
        if len(numbers) < count or numbers.device != device:
            size = 2 * max(count, len(numbers))
            self._numbers = torch.arange(size, dtype=torch.int32, device=device)
        return self._numbers[:count]

    def prepare_index(self, inputs: AttentionInputs, top_k: int) -> TritonIndexPlan:
        """Return the plan of an indexer's keys."""
        return TritonIndexPlan(self, self.prepare(inputs), top_k, max(inputs.kv_lens, default=0))

    def prepare_sparse(self, inputs: AttentionInputs, top_k: int) -> TritonSparsePlan:
        """Return the plan of latents, of which each token attends to at most `top_k`."""
        return TritonSparsePlan(self, self.prepare(inputs), top_k, max(inputs.kv_lens, default=0))

    def read_kv(
        self,
        params: AttentionParams,
        cache: torch.Tensor,
        slots: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return keys and values [n, vectors, kv_heads, head_size] of slots [n], in `dtype`."""
        del params
        size = cache.shape[2]
        return cache[slots // size, :, slots % size].to(dtype)

    def look_ahead(self, plan: Plan, spans: Sequence[LookAheadSpan]) -> LookAheadPlan:
        """Return the plan with spans of tokens that see ahead."""
        inputs = plan.inputs
        assert inputs is not None, "a static plan has no spans"
        where = inputs.query_starts, inputs.kv_lens, inputs.block_table, inputs.block_size
        return LookAheadPlan(plan, *where, spans)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Plan | LookAheadPlan,
    ) -> torch.Tensor:
        """Write keys and values, then compute decode sequences, then the others."""
        if isinstance(plan, LookAheadPlan):
            out = self.attend(params, query, key, value, cache, plan.plan)
            return self._attend_spans(params, query, cache, plan, out)
        layer = kernel_layer(params)
        if plan.slot_tokens is not None:
            key = key[plan.slot_tokens]
            value = value[plan.slot_tokens]
        write_kv(key, None if layer.is_latent else value, cache, plan.slots)
        return self._read(layer, query, cache, plan)

    def attend_with_rope(
        self,
        params: AttentionParams,
        rope: QkNormRope,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cache: torch.Tensor,
        plan: Plan | LookAheadPlan,
    ) -> torch.Tensor:
        """Normalise and rotate queries in place; write normalised, rotated keys and values to the
        cache.
        """
        if isinstance(plan, LookAheadPlan):
            qkv = query, key, value
            out = self.attend_with_rope(params, rope, *qkv, positions, cache, plan.plan)
            return self._attend_spans(params, query, cache, plan, out)
        calls = [(query, key, value, positions)]
        if (
            written := plan.slot_tokens
        ) is not None:  # the numbers of queries and slots differ: one launch each
            calls = [
                (query, key[:, :0], value[:, :0], positions),
                (query[written, :0], key[written], value[written], positions[written]),
            ]
        for queries, keys, values, query_starts in calls:
            write_qk_norm_rope(
                queries, keys, values, (rope.query_norm, rope.key_norm), rope.eps, rope.offset,
                rope.cos_sin, query_starts, rope.interleaved, cache, plan.slots,
            )  # fmt: skip
        return self._read(kernel_layer(params), query, cache, plan)

    def _read(
        self, layer: Layer, query: torch.Tensor, cache: torch.Tensor, plan: Plan
    ) -> torch.Tensor:
        out = query.new_empty(*query.shape[:2], layer.value_size)
        if plan.decodes:
            decode_plan = plan.decode_plan(layer)
            programs = self._programs_of(layer, query.device)
            attention.decode(layer, query, cache, plan.step, decode_plan, programs, out)
        if plan.reads:
            attention.attend(layer, query, cache, plan.step, out, skip_single=plan.decodes)
        return out

    def _programs_of(self, layer: Layer, device: torch.device) -> int:
        """Return the number of programs per KV head, so that all heads together fill the device."""
        return max(1, self.num_programs(device) // layer.kv_heads)

    def num_programs(self, device: torch.device) -> int:
        """Return the number of programs that fill the device."""
        if self._programs is None:
            self._programs = PROGRAMS_ELSEWHERE
            if device.type == "cuda":
                processors: int = torch.cuda.get_device_properties(device).multi_processor_count
                self._programs = PROGRAMS_PER_PROCESSOR * processors
        return self._programs

    def _attend_spans(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        cache: torch.Tensor,
        plan: LookAheadPlan,
        out: torch.Tensor,
    ) -> torch.Tensor:
        read = partial(self.read_kv, params, cache, dtype=query.dtype)
        return attend_spans(params, query, plan, read, out)
