"""Constants of attention layers, as backends get them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class LookAheadSpan(NamedTuple):
    """Consecutive tokens of a step that see later ones."""

    start: int
    """First token of the step."""
    stop: int
    """Token of the step after the last one."""
    end: int
    """Position after the last visible one of their own run."""
    later: tuple[tuple[int, int], ...] = ()
    """Visible positions after that: first one, and after the last one."""


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """Constants of one attention layer."""

    heads: int
    """Query heads of this rank."""
    kv_heads: int
    """Key-value heads of this rank; `heads // kv_heads` consecutive query
    heads share one.
    """
    head_size: int
    scale: float
    """Factor on the product of query and key."""
    window: int | None = None
    """Sliding window: number of visible tokens, including the current one."""
    chunk: int | None = None
    """Chunked attention: a token sees earlier tokens with the same `position
    // chunk`.
    """
    softcap: float | None = None
    """Scores become `softcap * tanh(score / softcap)`, after the scale and
    before the mask.
    """
    value_size: int | None = None
    """Values are this many leading elements of the keys, and only keys are
    cached; None: separate
    values."""
    alibi: torch.Tensor | None = field(default=None, compare=False)
    """[heads] float32: ALiBi slopes, applied after scale and softcap."""
    sinks: torch.Tensor | None = field(default=None, compare=False)
    """[heads]: attention sinks, scores that take part in the softmax without
    a value.
    """
    distance_bias: torch.Tensor | None = field(default=None, compare=False)
    """[heads, 2 * reach + 1] float32: relative bias, added after scale and
    softcap.

    Index 0 is for keys `reach` tokens before the query, the last for `reach` tokens
    after it; farther keys get the outermost bias.
    """
    kv_dtype: str | None = None
    """Cache dtype, if it is not the model's."""
    key_scale: torch.Tensor | None = field(default=None, compare=False)
    """[kv_heads] float32, 1 where the checkpoint has none: cached key times
    this is the key.

    None: the backend uses no scales, or each vector has its own scale
    (`KVSpec.scaled`).
    """
    value_scale: torch.Tensor | None = field(default=None, compare=False)
    causal: bool = True
    """False in a cross-attention layer: every token sees all encoder
    positions.
    """


@dataclass(frozen=True, slots=True)
class QkNormRope:
    """Fused query-key norm and RoPE before attention, as defined by the ops
    `rms_norm` and
    `rotary`."""

    query_norm: torch.Tensor | None
    """[head_size]"""
    key_norm: torch.Tensor | None
    """[head_size]; set if and only if `query_norm` is."""
    eps: float
    offset: float
    cos_sin: torch.Tensor
    """[positions, rotary_size] float32."""
    interleaved: bool
