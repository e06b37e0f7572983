"""Checkpoints of AMD Quark: one setting for all layers, others by name, and an exclude list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.floats import FloatsFormat, PackedFloatsFormat
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.common.kv_cache import kv_cache_dtype_of
from builtin_plugins.quant_methods.common.module_names import NameList, read_glob
from builtin_plugins.quant_methods.common.scales import ALL, GroupShape
from builtin_plugins.quant_methods.stored.activations import (
    FLOATS,
    MX_GROUP,
    ActivationScheme,
    warn_unsupported,
)
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_object, read_objects
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from core.api import EngineConfig, ModelError

ACTIVATION_TENSORS: Final = "input_scale input_zero_point output_zero_point weight_zero_point"
"""Scales of activations, which a scheme may need, and zero points of symmetric weights."""
OUTPUT_SCALE: Final = "output_scale"
"""Scale of a layer's outputs; of cached keys and values if a layer's outputs are quantized."""
EIGHT: Final = ("fp8_e4m3", "fp8_e5m2")
SIX: Final = {"fp6_e2m3": 2, "fp6_e3m2": 3}
"""Six-bit float dtypes, with their number of exponent bits."""
LINEAR: Final = "Linear"
"""The layer type with quantized weights; settings of other types are not needed."""
ROTATIONS: Final = ("online_r1_rotation", "r4")
"""Online rotations, which change products. An equal rotation of keys and queries (r3) does not."""


class Quark(ExcludeListMethod):
    """Checkpoints that AMD Quark exports as safetensors."""

    name = "quark"
    example_config: Final = {
        "quant_method": "quark",
        "global_quant_config": {
            "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "symmetric": True}
        },
        "exclude": ["lm_head"],
    }

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        super().__init__(config, NameList(read_names(config or {}, "exclude"), read_glob), engine)
        export = read_object(config, "export")
        if export.get("weight_format", "real_quantized") != "real_quantized":
            raise ModelError(
                f"quantization_config: export.weight_format: got {export['weight_format']!r:.80}; "
                "expected real_quantized. Export the checkpoint again."
            )
        rotations = sorted(_online_rotations(config.get("algo_config")))
        if rotations:
            raise ModelError(
                f"quantization_config: algo_config: got {', '.join(rotations)}; online activation "
                "rotations are not supported. Quantize the model without them."
            )
        self._settings = read_objects(config, "layer_quant_config")
        self._layers = {name: _format(facts) for name, facts in self._settings.items()}
        self._named = NameList(self._layers, read_glob)
        kinds = read_objects(config, "layer_type_quant_config")
        self._others = (
            kinds[LINEAR] if LINEAR in kinds else read_object(config, "global_quant_config")
        )
        self._format = _format(self._others)

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of the first name or pattern that matches, or the default format."""
        named = self._named.find_first(prefix)
        return self._format if named is None else self._layers[named]

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format; the head is a linear layer to the tool."""
        return self.choose_format(prefix)

    def kv_dtype(self, prefix: str) -> str | None:
        """Return the KV cache dtype: that of the outputs of keys' projections."""
        named = self._named.find_first(f"{prefix}.k_proj")
        facts = self._others if named is None else self._settings[named]
        return kv_cache_dtype_of(read_object(facts, "output_tensors").get("dtype"))


def _online_rotations(algorithms: Any) -> set[str]:
    """Return the rotations that are computed online; others are part of the weights."""
    stated = algorithms if isinstance(algorithms, (list, tuple)) else [algorithms]
    return {
        name for own in stated if isinstance(own, Mapping) for name in ROTATIONS if own.get(name)
    }


def _format(facts: Mapping[str, Any]) -> StoredFormat | None:
    """Return the format of a setting; None: its weights are plain."""
    weights = read_object(facts, "weight")
    if not weights:
        return None
    dtype = str(weights.get("dtype"))
    scheme = str(weights.get("qscheme"))
    group = weights.get("group_size")
    group_shape = {"per_tensor": GroupShape(ALL, ALL), "per_channel": GroupShape(1, ALL)}.get(
        scheme
    )
    inputs = _activations(read_object(facts, "input_tensors"))
    is_cached = bool(read_object(facts, "output_tensors"))
    optional = ACTIVATION_TENSORS if is_cached else f"{ACTIVATION_TENSORS} {OUTPUT_SCALE}"
    if dtype in EIGHT and group_shape is not None:
        return FloatsFormat(group_shape, optional=optional, activations=inputs)
    if dtype == "int8" and group_shape is not None and weights.get("symmetric", True):
        return IntsFormat(8, group_shape, optional=optional, activations=inputs)
    if scheme == "per_group" and group == MX_GROUP and dtype == "fp4":
        return PackedFloatsFormat(
            GroupShape(1, group),
            weight="weight",
            optional=optional,
            activations=inputs,
        )
    if scheme == "per_group" and group == MX_GROUP and dtype in SIX:
        return PackedFloatsFormat(
            GroupShape(1, group),
            bits=6,
            exponent_bits=SIX[dtype],
            weight="weight",
            optional=optional,
            activations=inputs,
        )
    raise ModelError(
        f"quantization_config: got weights of dtype {dtype!r:.80}, {scheme!r:.80}, group_size "
        f"{group!r:.80}, symmetric {weights.get('symmetric')!r:.80}; expected {', '.join(EIGHT)} "
        f"or symmetric int8 per_tensor or per_channel, or fp4, {', '.join(SIX)} per_group of "
        f"{MX_GROUP}."
    )


def _activations(facts: Mapping[str, Any]) -> ActivationScheme | None:
    """Return how a setting rounds inputs; None: not, or in a way that is logged as unsupported."""
    if not facts:
        return None
    number = str(facts.get("dtype"))
    scheme = facts.get("qscheme")
    is_symmetric = facts.get("symmetric", True) is not False
    is_dynamic = facts.get("is_dynamic") is True
    if scheme == "per_group" and number in FLOATS and facts.get("group_size") == MX_GROUP:
        return ActivationScheme(number, MX_GROUP, scale_kind="e8m0")
    known = number in (*EIGHT, "int8") and scheme in ("per_tensor", "per_channel", "per_token")
    if known and is_dynamic:
        return ActivationScheme(number, is_symmetric=is_symmetric)
    if known and scheme == "per_tensor":
        zero = "" if is_symmetric else "input_zero_point"
        return ActivationScheme(
            number, is_symmetric=is_symmetric, static="input_scale", static_zero=zero
        )
    warn_unsupported("input_tensors", facts)
    return None
