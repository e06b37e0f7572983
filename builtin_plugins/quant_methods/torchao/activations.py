"""How torchao's configs round activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.scales import is_block_shape
from builtin_plugins.quant_methods.stored.activations import ActivationScheme, warn_unsupported
from builtin_plugins.quant_methods.torchao.config_values import name_of, read_value

STATIC_SCALE: Final = "_weight_act_quant_scale"
STATIC_ZERO: Final = "_weight_act_quant_zero_point"
ACTIVATION_TENSORS: Final = f"{STATIC_SCALE} {STATIC_ZERO}"
"""Tensors about activations, which a static scheme needs."""


def activation_scheme(kind: str, facts: Mapping[str, Any]) -> ActivationScheme | None:
    """Return how a config of this type rounds inputs; None: not, or as logged, unsupported."""
    if "Activation" not in kind and not kind.endswith("InferenceConfig"):
        return None
    if kind.startswith("MX"):
        four = name_of(facts.get("activation_dtype")) == "float4_e2m1fn_x2"
        size = facts.get("block_size", 32)
        if four:
            return ActivationScheme("fp4", size, scale_kind="e8m0")
        return ActivationScheme("fp8_e4m3", size, scale_kind="e8m0_ceil")
    if kind.startswith("NVFP4"):
        is_scaled = bool(facts.get("use_dynamic_per_tensor_scale", True))
        return ActivationScheme("fp4", 16, scale_kind="e4m3" if is_scaled else "e4m3_alone")
    number = "int8" if kind.startswith("Int8") else "fp8_e4m3"
    if "Static" in kind:
        return ActivationScheme(number, static=STATIC_SCALE, static_zero=STATIC_ZERO)
    usual = "asymmetric" if "Intx" in kind else "symmetric"
    mapping = name_of(facts.get("act_mapping_type")) or usual
    granularity = facts.get("granularity")
    if isinstance(granularity, list) and granularity:
        granularity = granularity[0]
    own, sizes = read_value(granularity)
    block = sizes.get("block_size")
    if own == "PerBlock" and is_block_shape(block) and block[0] == 1:
        return ActivationScheme(number, block[1])
    if own not in ("", "PerTensor", "PerRow", "PerToken"):
        warn_unsupported("granularity", granularity)
        return None
    bound = facts.get("activation_value_ub")
    max_amax = float(bound) if isinstance(bound, (int, float)) and bound > 0 else math.inf
    return ActivationScheme(number, is_symmetric=mapping != "asymmetric", max_amax=max_amax)
