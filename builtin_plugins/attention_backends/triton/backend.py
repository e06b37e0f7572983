"""Paged attention in Triton: what a step's kernels need is on the device already, so that a plan is
four tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import torch
from core_kernels.triton import attention
from core_kernels.triton.attention import Layer, Step
from core_kernels.triton.cache import write
from core_kernels.triton.turned import write_turned

from core.api import AttentionInputs, AttentionParams, KVSpec
from core.contracts.attention import Turning

PROGRAMS_PER_PROCESSOR: Final = 4
PROGRAMS_ELSEWHERE: Final = 4
"""Without processors to count, as in the interpreter."""


@dataclass(slots=True)
class Plan:
    """One group in one step; what layers of equal reach need is made once, for the first of them."""

    step: Step
    slots: torch.Tensor
    decodes: bool
    """Some sequence has one token."""
    reads: bool
    """Some sequence has several."""
    slot_tokens: torch.Tensor | None = None
    """As in `AttentionInputs`."""
    pieces: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def pieces_of(self, layer: Layer) -> torch.Tensor:
        """Return the pieces of sequences that decode, for layers that see as far."""
        reach = layer.window, layer.chunk
        found = self.pieces.get(reach)
        if found is None:
            found = self.pieces[reach] = attention.plan_decode(
                self.step.starts, self.step.lengths, *reach
            )
        return found

    def kept(self, max_len: int) -> Plan:
        """Return the plan in memory of its own, where plans of later steps of as many sequences
        find room, each up to so long.
        """
        step = self.step
        slots = self.slots.clone()
        num_seqs, width = step.table.shape
        table = step.table.new_zeros(num_seqs, max(width, -(-max_len // step.block_size) + 1))
        table[:, :width] = step.table
        kept = replace(step, starts=step.starts.clone(), lengths=step.lengths.clone(), table=table)
        return Plan(kept, slots, self.decodes, self.reads)

    def kept_for_any(self, max_len: int) -> Plan:
        """Return a plan in memory of its own, where plans of all steps of as many tokens find room:
        each token may be a
        sequence, and those that are none have no tokens."""
        step = self.step
        count = step.num_tokens
        width = max(step.table.shape[1], -(-max_len // step.block_size) + 1)
        kept = replace(
            step,
            starts=step.starts.new_zeros(count + 1),
            lengths=step.lengths.new_zeros(count),
            table=step.table.new_zeros(count, width),
            queries=count,
        )
        made = Plan(kept, self.slots.clone(), decodes=True, reads=True)
        made.take(self)
        return made

    def take(self, other: Plan) -> None:
        """Copy what another step reads, for what was recorded with this plan."""
        own = self.step
        theirs = other.step
        num_seqs, width = theirs.table.shape
        own.starts[: num_seqs + 1].copy_(theirs.starts)
        own.starts[num_seqs + 1 :].fill_(own.num_tokens)
        own.lengths[:num_seqs].copy_(theirs.lengths)
        own.lengths[num_seqs:].zero_()
        own.table[:num_seqs, :width].copy_(theirs.table)
        self.slots.copy_(other.slots)
        self.pieces.clear()  # a recorded step works them out itself each time


class TritonAttention:
    """A block has the keys of its tokens, then their values: [num_blocks, vectors, block_size,
    kv_heads, head_size].
    """

    graph_support = "full"
    device_lengths = True
    slot_tokens = True

    def __init__(self) -> None:
        self._programs: int | None = None

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return [num_blocks, vectors, block_size, kv_heads, head_size]."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> Plan:
        """Return what kernels read of the step."""
        device = inputs.slots.device
        places = inputs.query_starts
        num_tokens = places[-1]
        num_seqs = len(places) - 1
        lengths = inputs.lengths
        if lengths is None:
            lengths = torch.tensor(inputs.kv_lens).to(device, non_blocking=True)
        if num_tokens == num_seqs:
            starts = torch.arange(num_seqs + 1, dtype=torch.int32, device=device)
        else:
            starts = torch.tensor(places, dtype=torch.int32).to(device, non_blocking=True)
        decodes = any(end - start == 1 for start, end in pairwise(places))
        step = Step(starts, lengths, inputs.block_table, inputs.block_size, num_tokens)
        return Plan(step, inputs.slots, decodes, num_tokens > num_seqs, inputs.slot_tokens)

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Plan,
    ) -> torch.Tensor:
        """Write keys and values, then compute sequences that decode, then the others."""
        layer = _layer(params)
        if plan.slot_tokens is not None:
            key = key[plan.slot_tokens]
            value = value[plan.slot_tokens]
        write(key, None if layer.is_latent else value, cache, plan.slots)
        return self._read(layer, query, cache, plan)

    def attend_turning(
        self,
        params: AttentionParams,
        turning: Turning,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cache: torch.Tensor,
        plan: Plan,
    ) -> torch.Tensor:
        """Norm and turn queries in place, and keys on their way to the cache; values go there in
        the same launch.
        """
        calls = [(query, key, value, positions)]
        if (
            written := plan.slot_tokens
        ) is not None:  # queries and slots are not as many: one launch for each
            calls = [
                (query, key[:, :0], value[:, :0], positions),
                (query[written, :0], key[written], value[written], positions[written]),
            ]
        for queries, keys, values, places in calls:
            write_turned(
                queries, keys, values, (turning.query_norm, turning.key_norm), turning.eps, turning.offset,
                turning.cos_sin, places, turning.interleaved, cache, plan.slots,
            )  # fmt: skip
        return self._read(_layer(params), query, cache, plan)

    def _read(
        self, layer: Layer, query: torch.Tensor, cache: torch.Tensor, plan: Plan
    ) -> torch.Tensor:
        out = query.new_empty(*query.shape[:2], layer.value_size)
        if plan.decodes:
            pieces = plan.pieces_of(layer)
            programs = self._programs_of(layer, query.device)
            attention.decode(layer, query, cache, plan.step, pieces, programs, out)
        if plan.reads:
            attention.attend(layer, query, cache, plan.step, out, skip_single=plan.decodes)
        return out

    def _programs_of(self, layer: Layer, device: torch.device) -> int:
        """Return how many programs share the pieces: as many as keep the device busy, for all
        key-value heads together.
        """
        if self._programs is None:
            self._programs = PROGRAMS_ELSEWHERE
            if device.type == "cuda":
                processors: int = torch.cuda.get_device_properties(device).multi_processor_count
                self._programs = PROGRAMS_PER_PROCESSOR * processors
        return max(1, self._programs // layer.kv_heads)


def _layer(params: AttentionParams) -> Layer:
    """Return the layer in the kernels' words."""
    return Layer(
        heads=params.heads,
        kv_heads=params.kv_heads,
        head_size=params.head_size,
        value_size=params.head_size if params.value_size is None else params.value_size,
        scale=params.scale,
        is_latent=params.value_size is not None,
        causal=params.causal,
        window=params.window or 0,
        chunk=params.chunk or 0,
        softcap=params.softcap or 0.0,
        alibi=params.alibi,
        sinks=params.sinks,
        distance_bias=params.distance_bias,
    )
