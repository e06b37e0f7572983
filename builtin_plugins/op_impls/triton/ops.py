"""Ops with the signatures of `core.models.ops.reference`, by Triton kernels."""

from __future__ import annotations

from functools import partial
from typing import Final

from core_kernels.triton import chunked_scan, row_ops, sampling, sequential_scan
from core_kernels.triton.gated_linear import gated_linear
from core_kernels.triton.latent_rows import latent_rows
from core_kernels.triton.moe import moe
from core_kernels.triton.router import MAX_EXPERTS, choose_experts
from core_kernels.triton.row_ops import rotary
from torch import Tensor

from core.models.ops import experts, torch_impls
from core.models.ops.experts import ExpertGroups
from core.models.ops.sampling import Truncation

__all__ = ["gated_linear", "latent_rows", "moe", "rotary"]

MAX_SEQUENTIAL_TOKENS: Final = 16
"""Longest segment computed by a sequential scan; longer ones use the chunked scan."""

rms_norm = row_ops.rms_norm
add_rms_norm = row_ops.add_rms_norm
layer_norm = row_ops.layer_norm
add_layer_norm = row_ops.add_layer_norm
silu_and_mul = partial(row_ops.gated, activation="silu")
gelu_and_mul = partial(row_ops.gated, activation="gelu")
gelu_tanh_and_mul = partial(row_ops.gated, activation="gelu_tanh")
relu_and_mul = partial(row_ops.gated, activation="relu")
causal_conv = sequential_scan.causal_conv
selective_scan = sequential_scan.selective_scan
best = sampling.argmax
draw = sampling.sample


def ssd_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the Mamba 2 scan of each token, and the final states, in float32."""
    scan = (
        sequential_scan.ssd_scan if x.shape[1] <= MAX_SEQUENTIAL_TOKENS else chunked_scan.ssd_scan
    )
    return scan(x, step, decay, write, read, state)


def delta_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    write: Tensor,
    state: Tensor,
    query_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gated delta rule of each token, and the final states, in float32."""
    if value.shape[1] <= MAX_SEQUENTIAL_TOKENS:
        return sequential_scan.delta_scan(query, key, value, decay, write, state, query_scale)
    # Per-channel decay uses the torch implementation.
    scan = chunked_scan.delta_scan if decay.dim() == 3 else torch_impls.delta_scan
    return scan(query, key, value, decay, write, state, query_scale)


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
    if chosen is not None or logits.shape[1] > MAX_EXPERTS:
        return experts.select_experts(
            logits, bias, score, top_k, groups, renormalize, scale, chosen
        )
    return choose_experts(logits, bias, score, top_k, groups, renormalize, scale)


def truncate(logits: Tensor, truncation: Truncation) -> Tensor:
    """Return logits with tokens outside each row's top-k and top-p at -inf, in place."""
    return sampling.truncate(logits, truncation.top_k, truncation.top_p)
