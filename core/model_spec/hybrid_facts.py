"""Mamba, Mamba 2 and the kinds of layers of hybrid models, read from the fields that they share."""

from __future__ import annotations

from math import ceil
from typing import Any

from core.errors import ModelError
from core.model_spec.facts import ModelFacts
from core.model_spec.recurrent import Mamba2Spec, MambaSpec

KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
"""Older names of layer types."""


def step_limits(facts: ModelFacts) -> dict[str, Any]:
    """Return the bounds of a token's step, as `Mamba2Spec` takes them; infinity, which JSON has
    not, is no bound.
    """
    limits = facts.get("time_step_limit") or (0.0, None)
    if not isinstance(limits, (list, tuple)) or len(limits) != 2:
        raise ModelError(
            f"time_step_limit in config.json is {limits!r:.100}; it must be a list of two numbers."
        )
    low, high = limits
    return {
        "dt_min": float(low),
        "dt_max": float(high) if isinstance(high, (int, float)) else float("inf"),
    }


def mamba(facts: ModelFacts, **others: Any) -> MambaSpec:
    """Return the state space over channels of a hybrid's config."""
    hidden = facts.count("hidden_size")
    rank = facts.get("mamba_dt_rank", "auto")
    given: dict[str, Any] = {
        "width": facts.count("mamba_expand", 2) * hidden,
        "state_size": facts.count("mamba_d_state", 16),
        "dt_rank": ceil(hidden / 16) if rank == "auto" else facts.count("mamba_dt_rank"),
        "kernel": facts.count("mamba_d_conv", 4),
        "bias": facts.flag("mamba_proj_bias"),
        "conv_bias": facts.flag("mamba_conv_bias", True),
    }
    return MambaSpec(**{**given, **others})


def mamba2(facts: ModelFacts, **others: Any) -> Mamba2Spec:
    """Return the state space of a hybrid's config, from fields that begin with `mamba_`."""
    heads = facts.count("mamba_n_heads", 128)
    size = facts.get("mamba_d_head", "auto")
    if size == "auto":
        size = facts.count("mamba_expand", 2) * facts.count("hidden_size") // heads
    given = {
        "heads": heads,
        "head_size": size,
        "state_size": facts.count("mamba_d_state", 256),
        "groups": facts.count("mamba_n_groups", 1),
        "kernel": facts.count("mamba_d_conv", 4),
        "activation": facts.activation(),
        "bias": facts.flag("mamba_proj_bias"),
        "conv_bias": facts.flag("mamba_conv_bias", True),
        **step_limits(facts),
    }
    return Mamba2Spec(**{**given, **others})


def layer_kinds(facts: ModelFacts, default: list[str], allowed: set[str]) -> list[str]:
    """Return what each layer is, from `layer_types` or its older name; `default` where a config
    says nothing.
    """
    listed = facts.get("layer_types") or facts.get("layers_block_type") or default
    if not isinstance(listed, (list, tuple)):
        raise ModelError(f"layer_types in config.json is {listed!r:.100}; it must be a list.")
    kinds = [KINDS.get(str(kind), str(kind)) for kind in listed]
    if not kinds or not set(kinds) <= allowed:
        raise ModelError(
            f"layer_types in config.json must name {', '.join(sorted(allowed))}; it holds "
            f"{', '.join(sorted(set(kinds))) or 'nothing'!s:.200}."
        )
    return kinds
