"""The tensors of one KV group in one step, and their static buffers for CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from core_kernels.triton.attention_shapes import Layer, Step
from core_kernels.triton.decode_plan import DecodePlan, plan_decode, programs_of_piece

from core.api.models import AttentionInputs


@dataclass(slots=True)
class Plan:
    """One KV group in one step; layers with equal spans and heads share a decode plan."""

    step: Step
    slots: torch.Tensor
    decodes: bool
    """Whether some sequence has one token."""
    reads: bool
    """Whether some sequence has several tokens."""
    slot_tokens: torch.Tensor | None = None
    """As in `AttentionInputs`."""
    inputs: AttentionInputs | None = None
    """The inputs on the host; None in a static plan."""
    decode_plans: dict[tuple[int, int, int], DecodePlan] = field(default_factory=dict)

    def decode_plan(self, layer: Layer) -> DecodePlan:
        """Return the decode plan of layers with this window, chunk and number of programs."""
        kind = layer.window, layer.chunk, programs_of_piece(layer)
        found = self.decode_plans.get(kind)
        if found is None:
            found = plan_decode(self.step.starts, self.step.lengths, layer)
            self.decode_plans[kind] = found
        return found

    def to_static(self, max_len: int) -> Plan:
        """Return a copy with static buffers for steps with as many sequences, up to `max_len`
        tokens.
        """
        step = self.step
        slots = self.slots.clone()
        num_seqs, width = step.table.shape
        table = step.table.new_zeros(num_seqs, max(width, -(-max_len // step.block_size) + 1))
        table[:, :width] = step.table
        static = replace(
            step, starts=step.starts.clone(), lengths=step.lengths.clone(), table=table
        )
        return Plan(static, slots, self.decodes, self.reads)

    def to_static_for_any(self, max_len: int) -> Plan:
        """Return a copy with static buffers for any step with as many tokens.

        Each token may be a sequence; unused sequences have no tokens.
        """
        step = self.step
        count = step.num_tokens
        width = max(step.table.shape[1], -(-max_len // step.block_size) + 1)
        static = replace(
            step,
            starts=step.starts.new_zeros(count + 1),
            lengths=step.lengths.new_zeros(count),
            table=step.table.new_zeros(count, width),
            queries=count,
        )
        made = Plan(static, self.slots.clone(), decodes=True, reads=True)
        made.copy_from(self)
        return made

    def copy_from(self, other: Plan) -> None:
        """Copy another step's tensors into this plan's static buffers, before a graph replay."""
        own = self.step
        theirs = other.step
        num_seqs, width = theirs.table.shape
        own.starts[: num_seqs + 1].copy_(theirs.starts)
        own.starts[num_seqs + 1 :].fill_(own.num_tokens)
        own.lengths[:num_seqs].copy_(theirs.lengths)
        own.lengths[num_seqs:].zero_()
        own.table[:num_seqs, :width].copy_(theirs.table)
        self.slots.copy_(other.slots)
        self.decode_plans.clear()  # a captured step computes its own in the graph
