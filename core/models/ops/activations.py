"""Gated activations, and those of experts, in plain torch; `reference` has them as ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up for x = [..., gate | up]: half as wide."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def gelu_and_mul(x: Tensor) -> Tensor:
    """Return gelu(gate) * up, with the exact gelu, for x = [..., gate | up]."""
    gate, up = x.chunk(2, -1)
    return F.gelu(gate) * up


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Return gelu(gate) * up, with the tanh approximation, for x = [..., gate | up]."""
    gate, up = x.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def relu_and_mul(x: Tensor) -> Tensor:
    """Return relu(gate) * up for x = [..., gate | up]."""
    gate, up = x.chunk(2, -1)
    return F.relu(gate) * up


def swiglu_clamped_and_mul(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """Return gate * sigmoid(alpha * gate) * (up + 1) for x = [..., gate | up].

    gate is clamped to at most `limit`, up to both sides of it.
    """
    gate, up = x.chunk(2, -1)
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(gate * alpha) * (up.clamp(-limit, limit) + 1)


GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_tanh": gelu_tanh_and_mul,
    "relu": relu_and_mul,
    "swiglu_clamped": swiglu_clamped_and_mul,
}
"""Gated activations by name, applied to fused gate and up."""


def relu2(x: Tensor) -> Tensor:
    """Return the square of x where positive, else 0."""
    return F.relu(x).square()


EXPERTS = {**GATED, "relu2_alone": relu2}
"""Activations that every `moe` op has, by name."""
UNGATED_EXPERTS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu_alone": F.silu,
    "gelu_alone": F.gelu,
    "gelu_tanh_alone": partial(F.gelu, approximate="tanh"),
    "relu_alone": F.relu,
}
"""Further activations of experts without gates, which the reference has."""


def expert_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation of the `moe` op; `NAME:LIMIT` clamps the inputs of a gated one.

    `silu:CAP,CAP` softens both of SwiGLU's factors, `swiglu_clamped:ALPHA,LIMIT` changes its
    numbers.
    """
    kind, _, limit = name.partition(":")
    first, _, second = limit.partition(",")
    if second and kind == "swiglu_clamped":
        return partial(swiglu_clamped_and_mul, alpha=float(first), limit=float(second))
    if second:
        return partial(softcapped_swiglu, gate_cap=float(first), up_cap=float(second))
    found = EXPERTS.get(kind) or UNGATED_EXPERTS[kind]
    return partial(clamped, found, limit=float(limit)) if limit else found


def clamped(activation: Callable[[Tensor], Tensor], x: Tensor, limit: float) -> Tensor:
    """Return a gated activation of x = [..., gate | up], gate up to `limit`, up within it."""
    gate, up = x.chunk(2, -1)
    return activation(torch.cat([gate.clamp(max=limit), up.clamp(-limit, limit)], -1))


def softcapped_swiglu(x: Tensor, gate_cap: float, up_cap: float) -> Tensor:
    """Return SwiGLU of x = [..., gate | up] with soft bounds; the sigmoid reads the whole gate."""
    gate, up = x.float().chunk(2, -1)
    linear = (gate / gate_cap).tanh() * gate_cap
    return (linear * gate.sigmoid() * (up / up_cap).tanh() * up_cap).to(x.dtype)
