"""Sparse attention in Triton: plans of tensors on the device, which CUDA graphs may capture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from core_kernels.triton import attention
from core_kernels.triton.attention_shapes import Layer, Selected, Step
from core_kernels.triton.block_copy import write_kv
from core_kernels.triton.decode_plan import programs_of_piece
from core_kernels.triton.sparse_attention import TokenPlan, plan_tokens, select_positions

from builtin_plugins.attention_backends.triton.kernel_layer import kernel_layer
from builtin_plugins.attention_backends.triton.plan import Plan
from core.model_spec.attention_params import AttentionParams


class WholeAttention(Protocol):
    """Attention to all tokens, on a device."""

    def num_programs(self, device: torch.device) -> int:
        """Return the number of programs that fill the device."""

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Plan,
    ) -> torch.Tensor:
        """Write keys and values; return attention [num_tokens, heads, value size]."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The positions that an indexer selects, for the layers of latents in the same step."""

    positions: torch.Tensor
    """[num_tokens, top_k] int32, ascending. Of a token that sees fewer, the last ones are not
    set.
    """
    tokens: TokenPlan
    """The tokens as sequences of their own."""


@dataclass(slots=True)
class SelectingPlan:
    """A KV group in one step; each token attends to at most `top_k` tokens."""

    backend: WholeAttention
    """Attends to all tokens."""
    plan: Plan
    """The plan of all tokens."""
    top_k: int
    """Maximum number of tokens that a token attends to."""
    max_len: int
    """Limit of the lengths of this step, or of all that a static plan is for."""

    def copy_from(self, other: SelectingPlan) -> None:
        """Copy another step's tensors into this plan's static buffers, before a graph replay."""
        self.plan.copy_from(other.plan)


@dataclass(slots=True)
class TritonIndexPlan(SelectingPlan):
    """The keys of an indexer, as `IndexPlan`."""

    _tokens: TokenPlan | None = None
    """The plan of the tokens, which the first layer makes for all layers."""

    def select(
        self, query: torch.Tensor, weights: torch.Tensor, key: torch.Tensor, cache: torch.Tensor
    ) -> Selection | None:
        """Write the keys; return the positions that each token attends to. None: each sees at most
        `top_k` tokens.

        One launch selects for all sequences.
        """
        if self.plan.slot_tokens is not None:
            key = key[self.plan.slot_tokens]
        write_kv(key[:, None], None, cache[:, None, :, None], self.plan.slots)
        if self.max_len <= self.top_k:
            return None
        programs = self.backend.num_programs(query.device)
        step = self.plan.step
        if self._tokens is None:
            self._tokens = plan_tokens(step, self.top_k, programs)
        tokens = self._tokens
        positions = select_positions(
            query, weights, cache, step, tokens, self.top_k, self.max_len, programs
        )
        return Selection(positions, tokens)

    def copy_from(self, other: SelectingPlan) -> None:
        """Copy another step's tensors into this plan's static buffers, before a graph replay."""
        SelectingPlan.copy_from(self, other)
        self._tokens = None

    def to_static(self, max_len: int) -> TritonIndexPlan:
        """Return a copy with static buffers, as `Plan.to_static`."""
        return TritonIndexPlan(self.backend, self.plan.to_static(max_len), self.top_k, max_len)

    def to_static_for_any(self, max_len: int) -> TritonIndexPlan:
        """Return a copy with static buffers, as `Plan.to_static_for_any`."""
        plan = self.plan.to_static_for_any(max_len)
        return TritonIndexPlan(self.backend, plan, self.top_k, max_len)


@dataclass(slots=True)
class TritonSparsePlan(SelectingPlan):
    """Latents, as `SparsePlan`."""

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        cache: torch.Tensor,
        selected: Selection | None,
    ) -> torch.Tensor:
        """Write latents to the cache; return attention [num_tokens, heads, rank].

        Each token attends to its `selected` positions; None: to all that it sees.
        """
        plan = self.plan
        layer = kernel_layer(params)
        if selected is None:
            value = key[..., : layer.value_size]
            return self.backend.attend(params, query, key, value, cache, plan)
        if plan.slot_tokens is not None:
            key = key[plan.slot_tokens]
        write_kv(key, None, cache, plan.slots)
        return self._attend(replace(layer, causal=False), query, cache, selected)

    def _attend(
        self, layer: Layer, query: torch.Tensor, cache: torch.Tensor, selected: Selection
    ) -> torch.Tensor:
        """Return the attention of each token, a sequence of the selected positions."""
        own = self.plan.step
        tokens = selected.tokens
        step = Step(
            tokens.starts, tokens.lengths, own.table, own.block_size, own.num_tokens, queries=1
        )
        positions = Selected(selected.positions, tokens.owners)
        out = query.new_empty(*query.shape[:2], layer.value_size)
        programs = self.backend.num_programs(query.device)
        if tokens.decode is not None and own.num_tokens * programs_of_piece(layer) < programs:
            attention.decode(layer, query, cache, step, tokens.decode, programs, out, positions)
        else:  # enough programs without splits of keys, and no partial sums
            attention.attend(layer, query, cache, step, out, positions, skip_single=False)
        return out

    def to_static(self, max_len: int) -> TritonSparsePlan:
        """Return a copy with static buffers, as `Plan.to_static`."""
        return TritonSparsePlan(self.backend, self.plan.to_static(max_len), self.top_k, max_len)

    def to_static_for_any(self, max_len: int) -> TritonSparsePlan:
        """Return a copy with static buffers, as `Plan.to_static_for_any`."""
        plan = self.plan.to_static_for_any(max_len)
        return TritonSparsePlan(self.backend, plan, self.top_k, max_len)
