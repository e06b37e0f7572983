"""The op table: every op bound to one implementation, once, at start-up.

Layers call plain functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from core.errors import PluginError, did_you_mean
from core.ops import delta, reference, sampling, state_space
from core.ops.moe import grouped_moe

if TYPE_CHECKING:
    import torch

    Unary = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class OpTable:
    """One function per op; the fields' names are the names of the ops.

    The default is the reference's meaning.
    """

    rms_norm: Callable[..., torch.Tensor] = reference.rms_norm
    add_rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]] = reference.add_rms_norm
    layer_norm: Callable[..., torch.Tensor] = reference.layer_norm
    silu_and_mul: Unary = reference.silu_and_mul
    gelu_and_mul: Unary = reference.gelu_and_mul
    gelu_tanh_and_mul: Unary = reference.gelu_tanh_and_mul
    relu_and_mul: Unary = reference.relu_and_mul
    silu: Unary = reference.silu
    gelu: Unary = reference.gelu
    gelu_tanh: Unary = reference.gelu_tanh
    relu: Unary = reference.relu
    rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]] = reference.rotary
    full_attention: Callable[..., torch.Tensor] = reference.full_attention
    linear: Callable[..., torch.Tensor] = reference.linear
    embedding: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = reference.embedding
    softcap: Callable[[torch.Tensor, float], torch.Tensor] = reference.softcap
    widen: Unary = reference.widen
    moe: Callable[..., torch.Tensor] = grouped_moe
    causal_conv: Callable[..., tuple[torch.Tensor, torch.Tensor]] = reference.causal_conv
    ssd_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]] = state_space.ssd_scan
    selective_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]] = state_space.selective_scan
    delta_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]] = delta.delta_scan
    fading_sum: Callable[..., tuple[torch.Tensor, torch.Tensor]] = delta.fading_sum
    best: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = sampling.best
    truncate: Callable[[torch.Tensor, sampling.Cut], torch.Tensor] = sampling.truncate
    draw: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = sampling.draw

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all ops."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def choose(cls, registry: Any, facts: Mapping[str, Any]) -> OpTable:
        """Bind each op to the best implementation in the registry that fits `facts` (device, dtype,
        what the platform adds).

        Raises `PluginError` when a plugin brings an implementation of something that is no op.
        """
        names = cls.names()
        chosen: dict[str, Callable[..., Any]] = {}
        for candidate in registry.rank("op_impls", facts):
            entry = candidate.registered.entry
            op = entry.name.partition("/")[0]
            if op not in names:
                raise PluginError(
                    f"plugin {candidate.registered.plugin.name!r} implements {entry.name!r}, but "
                    f"there is no op {op!r}"
                    f"{did_you_mean(op, names)}. Ops: {', '.join(names)}."
                )
            if not candidate.reason and op not in chosen:
                chosen[op] = registry.load(candidate.registered)
        return cls(**chosen)
