"""Ops with the signatures of `core.models.ops.reference`, by the C++ library where it can."""

from __future__ import annotations

from typing import Final

from core_kernels import elementwise
from core_kernels.library import load_library
from core_kernels.packed import PackedOps
from core_kernels.row_ops import GELU_TANH, SILU, RowOps
from core_kernels.sampling import SamplingOps
from core_kernels.selection import SelectionOps
from torch import Tensor

from core.models.ops import experts, reference, sampling, selection
from core.models.ops.experts import ExpertGroups

_library = load_library()
KERNELS: Final = RowOps(_library) if _library is not None else None
"""Loaded once per process, as any extension module is; None where there is no library."""
PRODUCTS: Final = PackedOps(_library) if _library is not None else None
ELEMENTS: Final = elementwise.ElementOps(_library) if _library is not None else None
SELECTION: Final = SelectionOps(_library) if _library is not None else None
CHOICES: Final = SamplingOps(_library) if _library is not None else None


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / rms(x) * (weight + offset) over the last dimension."""
    out = KERNELS.rms_norm(x, weight, eps, offset) if KERNELS else None
    return reference.rms_norm(x, weight, eps, offset) if out is None else out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual), usually in the memory of x and residual."""
    out = KERNELS.add_rms_norm(x, residual, weight, eps, offset) if KERNELS else None
    return reference.add_rms_norm(x, residual, weight, eps, offset) if out is None else out


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return (x - mean) / deviation * weight + bias over the last dimension."""
    out = ELEMENTS.layer_norm(x, weight, bias, eps) if ELEMENTS else None
    return reference.layer_norm(x, weight, bias, eps) if out is None else out


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (layer_norm(x + residual), x + residual)."""
    total = x + residual
    return layer_norm(total, weight, bias, eps), total


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    out = ELEMENTS.unary(x, elementwise.SILU) if ELEMENTS else None
    return reference.silu(x) if out is None else out


def sigmoid(x: Tensor) -> Tensor:
    """Return the sigmoid of x; a number's result depends on that number only.

    `torch.sigmoid` computes what fills no vector at the end of each thread's share to other bits.
    """
    out = ELEMENTS.unary(x, elementwise.SIGMOID) if ELEMENTS else None
    return reference.sigmoid(x) if out is None else out


def gelu(x: Tensor) -> Tensor:
    """Return the exact gelu of x."""
    out = ELEMENTS.unary(x, elementwise.GELU) if ELEMENTS else None
    return reference.gelu(x) if out is None else out


def gelu_tanh(x: Tensor) -> Tensor:
    """Return gelu of x in the tanh approximation."""
    out = ELEMENTS.unary(x, elementwise.GELU_TANH) if ELEMENTS else None
    return reference.gelu_tanh(x) if out is None else out


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of weight [vocab, hidden] for int64 ids [n]."""
    out = ELEMENTS.take(weight, ids) if ELEMENTS else None
    return reference.embedding(ids, weight) if out is None else out


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up for x = [..., gate | up]."""
    out = KERNELS.gated(x, SILU) if KERNELS else None
    return reference.silu_and_mul(x) if out is None else out


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Return gelu(gate) * up, with the tanh approximation, for x = [..., gate | up]."""
    out = KERNELS.gated(x, GELU_TANH) if KERNELS else None
    return reference.gelu_tanh_and_mul(x) if out is None else out


def rotary(
    query: Tensor, key: Tensor, cos_sin: Tensor, positions: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Return query and key after RoPE, in place if possible."""
    out = KERNELS.rotary(query, key, cos_sin, positions, interleaved) if KERNELS else None
    return reference.rotary(query, key, cos_sin, positions, interleaved) if out is None else out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias for weight [out, in]; a row's result depends on that row alone."""
    out = PRODUCTS.plain(x, weight, bias) if PRODUCTS else None
    return reference.linear(x, weight, bias) if out is None else out


def widen(x: Tensor) -> Tensor:
    """Return x in float32."""
    out = KERNELS.widen(x) if KERNELS else None
    return reference.widen(x) if out is None else out


def select_experts(
    logits: Tensor,
    bias: Tensor | None,
    score: str,
    top_k: int,
    groups: ExpertGroups,
    renormalize: bool,
    scale: float,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return expert weights and experts, [n, top_k] each, for float32 logits [n, experts]."""
    scores = sigmoid(logits) if score == "sigmoid" else experts.SCORES[score](logits)
    return experts.select_by_scores(scores, bias, top_k, groups, renormalize, scale, chosen)


def select_tokens(
    query: Tensor, weights: Tensor, keys: Tensor, table: Tensor, seen: Tensor, count: int
) -> Tensor:
    """Return the positions [n, count] with the highest scores, ascending; int32."""
    inputs = (query, weights, keys, table, seen, count)
    out = SELECTION.select(*inputs) if SELECTION else None
    return selection.select_tokens(*inputs) if out is None else out


def best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best logit and its token per row; the first of equals, NaN before all."""
    out = CHOICES.argmax(logits) if CHOICES else None
    return sampling.best(logits) if out is None else out


def draw(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Return one token per row, at the seed's number for the position, of the cumulative
    distribution.
    """
    out = CHOICES.sample(logits, sampling.uniform(seeds, positions)) if CHOICES else None
    return sampling.draw(logits, seeds, positions) if out is None else out
