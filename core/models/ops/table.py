"""Binds every op to one implementation, once, at start-up: the reference or a plugin's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.errors import PluginError, did_you_mean
from core.model_spec.op_table import OpTable
from core.models.ops import experts, reference, sampling, selection, torch_impls
from core.models.ops.torch_impls import grouped_moe

if TYPE_CHECKING:
    from core.contracts.registry import Registry


def reference_ops() -> OpTable:
    """Return the table of the reference implementations in plain torch."""
    return OpTable(
        rms_norm=reference.rms_norm,
        add_rms_norm=reference.add_rms_norm,
        layer_norm=reference.layer_norm,
        add_layer_norm=reference.add_layer_norm,
        silu_and_mul=reference.silu_and_mul,
        gelu_and_mul=reference.gelu_and_mul,
        gelu_tanh_and_mul=reference.gelu_tanh_and_mul,
        relu_and_mul=reference.relu_and_mul,
        silu=reference.silu,
        sigmoid=reference.sigmoid,
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
        select_experts=experts.select_experts,
        causal_conv=reference.causal_conv,
        ssd_scan=torch_impls.ssd_scan,
        selective_scan=torch_impls.selective_scan,
        delta_scan=torch_impls.delta_scan,
        linear_recurrence=torch_impls.linear_recurrence,
        select_tokens=selection.select_tokens,
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
