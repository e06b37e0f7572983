"""The op table: one function for every op that layers call, chosen once at start-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from core.errors import PluginError, did_you_mean
from core.models.ops import reference, sampling, torch_impls
from core.models.ops.torch_impls import grouped_moe

if TYPE_CHECKING:
    import torch

    from core.contracts.registry import Registry

    Unary = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class OpTable:
    """One function per op; the fields' names are the names of the ops."""

    rms_norm: Callable[..., torch.Tensor]
    add_rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    layer_norm: Callable[..., torch.Tensor]
    silu_and_mul: Unary
    gelu_and_mul: Unary
    gelu_tanh_and_mul: Unary
    relu_and_mul: Unary
    silu: Unary
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
    causal_conv: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    ssd_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    selective_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    delta_scan: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    linear_recurrence: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    best: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    truncate: Callable[[torch.Tensor, Any], torch.Tensor]
    draw: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all ops."""
        return tuple(field.name for field in fields(cls))


OpImplementation = Callable[..., Any]
"""Target of an `op_impls` entry: a function with the signature of its op in
`core.models.ops.reference`.
"""


def reference_ops() -> OpTable:
    """Return the table of the reference implementations in plain torch."""
    return OpTable(
        rms_norm=reference.rms_norm,
        add_rms_norm=reference.add_rms_norm,
        layer_norm=reference.layer_norm,
        silu_and_mul=reference.silu_and_mul,
        gelu_and_mul=reference.gelu_and_mul,
        gelu_tanh_and_mul=reference.gelu_tanh_and_mul,
        relu_and_mul=reference.relu_and_mul,
        silu=reference.silu,
        gelu=reference.gelu,
        gelu_tanh=reference.gelu_tanh,
        relu=reference.relu,
        rotary=reference.rotary,
        full_attention=reference.full_attention,
        linear=reference.linear,
        embedding=reference.embedding,
        softcap=reference.softcap,
        widen=reference.widen,
        moe=grouped_moe,
        causal_conv=reference.causal_conv,
        ssd_scan=torch_impls.ssd_scan,
        selective_scan=torch_impls.selective_scan,
        delta_scan=torch_impls.delta_scan,
        linear_recurrence=torch_impls.linear_recurrence,
        best=sampling.best,
        truncate=sampling.truncate,
        draw=sampling.draw,
    )


def choose_ops(registry: Registry, facts: Mapping[str, Any]) -> OpTable:
    """Return the table with the best implementation of each op in the registry that fits `facts`
    (device, dtype and what the platform adds).

    Raises `PluginError` when a plugin implements an unknown op.
    """
    names = OpTable.names()
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
    return replace(reference_ops(), **chosen)
