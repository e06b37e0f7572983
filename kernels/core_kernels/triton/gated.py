"""Activations of a gate times what it lets through, from one fused product."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import rows_of, sigmoid, tanh

Tensor = torch.Tensor

BLOCK: Final = 1024
ACTIVATIONS: Final = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "swiglu_clamped": 4}


def gated(x: Tensor, activation: str) -> Tensor:
    """Return activation(gate) * up for x = [..., gate | up] as a new contiguous tensor, half as
    wide.

    `activation` is a name of `ACTIVATIONS`; products are rounded once.
    """
    half = x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], half)
    rows = rows_of(x)
    if rows.count and half:
        _gated[rows.count, triton.cdiv(half, BLOCK)](
            rows.tensor, rows.inner, rows.outer_stride, rows.inner_stride, out, half,
            ACTIVATION=ACTIVATIONS[activation], BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr):
    """Return activation(gate) * up in float32."""
    if ACTIVATION == 0:
        return gate * sigmoid(gate) * up
    elif ACTIVATION == 1:
        return gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476)) * up
    elif ACTIVATION == 2:
        return (
            gate
            * 0.5
            * (1.0 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
            * up
        )
    elif ACTIVATION == 3:
        return tl.maximum(gate, 0.0) * up
    else:
        gate = tl.minimum(gate, 7.0)
        return gate * sigmoid(gate * 1.702) * (tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0)


@triton.jit
def _gated(
    x, inner, outer_stride, inner_stride, out, half, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = x + row // inner * outer_stride + row % inner * inner_stride + element
    gate = tl.load(at, mask=element < half, other=0.0).to(tl.float32)
    up = tl.load(at + half, mask=element < half, other=0.0).to(tl.float32)
    found = activated(gate, up, ACTIVATION)
    tl.store(out + row * half + element, found.to(out.dtype.element_ty), mask=element < half)
