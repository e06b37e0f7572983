"""Ops with the signatures of `core.models.ops.reference`, by Triton kernels."""

from __future__ import annotations

from functools import partial
from typing import Final

from core_kernels.triton import chunks, gated, norms, sampling, scans
from core_kernels.triton.experts import moe
from core_kernels.triton.rotary import rotary
from torch import Tensor

from core.models.ops import delta
from core.models.ops.sampling import Cut

__all__ = ["moe", "rotary"]

MOST_WALKED: Final = 16
"""Tokens of a stretch up to which its state walks from one to the next; longer ones are products
over chunks.
"""

rms_norm = norms.rms_norm
add_rms_norm = norms.add_rms_norm
layer_norm = norms.layer_norm
silu_and_mul = partial(gated.gated, activation="silu")
gelu_and_mul = partial(gated.gated, activation="gelu")
gelu_tanh_and_mul = partial(gated.gated, activation="gelu_tanh")
relu_and_mul = partial(gated.gated, activation="relu")
causal_conv = scans.causal_conv
selective_scan = scans.selective_scan
best = sampling.best
draw = sampling.draw


def ssd_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what a state space of heads (Mamba 2) gives for each token, and the states after the
    last, in float32.
    """
    scan = scans.ssd_scan if x.shape[1] <= MOST_WALKED else chunks.ssd_scan
    return scan(x, step, decay, write, read, state)


def delta_scan(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what the gated delta rule gives for each token, and the states after the last, in
    float32.
    """
    if value.shape[1] <= MOST_WALKED:
        return scans.delta_scan(query, key, value, decay, write, state)
    # Where each element of a key decays by itself, the chunks are torch's.
    scan = chunks.delta_scan if decay.dim() == 3 else delta.delta_scan
    return scan(query, key, value, decay, write, state)


def truncate(logits: Tensor, cut: Cut) -> Tensor:
    """Return logits with everything outside each row's top-k and top-p at -inf, in their own
    memory.
    """
    return sampling.truncate(logits, cut.top_k, cut.top_p)
