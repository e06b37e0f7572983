"""The op table: one function for every op that layers call.

The meaning of each op is its namesake in `core.models.ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Unary = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class OpTable:
    """One function per op; the fields' names are the names of the ops."""

    rms_norm: Callable[..., torch.Tensor]
    add_rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    layer_norm: Callable[..., torch.Tensor]
    add_layer_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    silu_and_mul: Unary
    gelu_and_mul: Unary
    gelu_tanh_and_mul: Unary
    relu_and_mul: Unary
    silu: Unary
    sigmoid: Unary
    gelu: Unary
    gelu_tanh: Unary
    relu: Unary
    rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    full_attention: Callable[..., torch.Tensor]
    linear: Callable[..., torch.Tensor]
    embedding: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    softcap: Callable[[torch.Tensor, float], torch.Tensor]
    widen: Unary
    moe: Callable[..., torch.Tensor]
    select_experts: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    causal_conv: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    ssd_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    selective_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    delta_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    linear_recurrence: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    select_tokens: Callable[..., torch.Tensor]
    best: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    truncate: Callable[[torch.Tensor, Any], torch.Tensor]
    draw: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    gated_linear: Callable[..., torch.Tensor] | None = None
    """None: a product, then its activation."""
    latent_rows: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None
    """None: a norm, then RoPE, then copies."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all ops."""
        return tuple(field.name for field in fields(cls))


OpImplementation = Callable[..., Any]
"""Target of an `op_impls` entry: a function with the signature of its op in
`core.models.ops.reference`.
"""
