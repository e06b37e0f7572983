"""torchao checkpoints: one config for all layers or one per name, and an exclude list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.model_sources.api import Pattern
from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.floats import FloatsFormat
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.common.module_names import (
    REGEX_PREFIX,
    Matcher,
    NameList,
    read_transformers_name,
)
from builtin_plugins.quant_methods.common.scales import ALL, GroupShape, is_block_shape
from builtin_plugins.quant_methods.stored.activations import ActivationScheme
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_object
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.torchao.activations import (
    ACTIVATION_TENSORS,
    activation_scheme,
)
from builtin_plugins.quant_methods.torchao.config_values import name_of, read_value
from builtin_plugins.quant_methods.torchao.format import (
    CODES,
    SCALES,
    ZEROS,
    PackedInt4Format,
    SwizzledFloatsFormat,
    SymmetricIntsFormat,
)
from core.api import EngineConfig, ModelError

BY_NAME: Final = {"FqnToConfig": "fqn_to_config", "ModuleFqnToConfig": "module_fqn_to_config"}
DEFAULT: Final = "_default"


class TorchAo(ExcludeListMethod):
    """Checkpoints that transformers saved with torchao weights, as safetensors."""

    name = "torchao"
    example_config: Final = {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}},
        "modules_to_not_convert": ["lm_head"],
    }

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        super().__init__(
            config,
            NameList(
                read_names(config or {}, "modules_to_not_convert"),
                read_transformers_name,
                anywhere=True,
            ),
            engine,
        )
        stated = config.get("quant_type")
        if not isinstance(stated, Mapping) or not isinstance(stated.get("default"), Mapping):
            raise ModelError(
                f"quantization_config: quant_type: got {stated!r:.100}; expected an object with a "
                "torchao config under `default`. Checkpoints with a type name are pickled; save "
                "the model again with a newer version."
            )
        default = stated["default"]
        self._stated_plain = config.get("modules_to_not_convert")
        self._has_ends = bool(config.get("include_input_output_embeddings"))
        self._named: dict[str, StoredFormat | None] = {}
        self._others: StoredFormat | None = None
        field = BY_NAME.get(str(default.get("_type")))
        if field is not None:
            facts = read_object(default, "_data")
            by_name = read_object(facts, field) or read_object(facts, "module_fqn_to_config")
            self._named = {name: scheme(own) for name, own in by_name.items()}
            self._others = self._named.pop(DEFAULT, None)
        else:
            self._others = scheme(default)
        self._by_name = NameList(self._named, _whole)

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format by the layer's name, by the first matching pattern, or the default."""
        named = self._by_name.find(prefix)
        return self._others if named is None else self._named[named]

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format; plain unless the config includes it or lists exclusions."""
        if self._stated_plain is None and not self._has_ends:
            return None
        return self.choose_format(prefix)

    def choose_embedding_format(self, prefix: str) -> StoredFormat | None:
        """Return the embedding's format, if the config includes it."""
        return self.choose_format(prefix) if self._has_ends else None


def _whole(text: str) -> Matcher | None:
    """Read a `re:` pattern that matches the whole name of a layer or of its weight."""
    if not text.startswith(REGEX_PREFIX):
        return None
    pattern = Pattern(text.removeprefix(REGEX_PREFIX))
    return lambda name: pattern.fullmatch(name) or pattern.fullmatch(f"{name}.weight")


NAMES: Final[Mapping[str, Any]] = {"weight": CODES, "scale": SCALES}
ROWS: Final = {"_type": "PerRow"}
INT8: Final = (
    "Int8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8StaticActivationInt8WeightConfig",
)
FLOAT8: Final = (
    "Float8WeightOnlyConfig",
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8StaticActivationFloat8WeightConfig",
)
INTX: Final = {"IntxWeightOnlyConfig": "", "Int8DynamicActivationIntxWeightConfig": "weight_"}
"""Configs, with the prefix of their fields about weights."""
INT4: Final = ("Int4WeightOnlyConfig", "Float8DynamicActivationInt4WeightConfig")
MX: Final = ("MXDynamicActivationMXWeightConfig", "MXFPInferenceConfig")
NVFP4: Final = (
    "NVFP4WeightOnlyConfig",
    "NVFP4DynamicActivationNVFP4WeightConfig",
    "NVFP4InferenceConfig",
)
READ: Final = (*INT8, *FLOAT8, *INTX, *INT4, *MX, *NVFP4)


def scheme(config: Any) -> StoredFormat | None:
    """Return the weight format of a config; None: weights are plain.

    Raises `ModelError` for an unsupported one.
    """
    if config is None:
        return None
    kind, facts = read_value(config)
    if kind in INT8:
        group_shape = _group_shape_of(
            _of_weights(facts.get("granularity")) or _older(facts.get("group_size"))
        )
        return SymmetricIntsFormat(
            8,
            group_shape,
            optional=f"{ZEROS} {ACTIVATION_TENSORS}",
            activations=activation_scheme(kind, facts),
            **NAMES,
        )
    if kind in FLOAT8:
        default = ROWS if kind == FLOAT8[0] else {"_type": "PerTensor"}
        return FloatsFormat(
            _group_shape_of(_of_weights(facts.get("granularity")) or default),
            optional=ACTIVATION_TENSORS,
            activations=activation_scheme(kind, facts),
            **NAMES,
        )
    if kind in INTX:
        return _any_bits(facts, INTX[kind], activation_scheme(kind, facts))
    if kind in INT4 and name_of(facts.get("int4_packing_format", {"_data": "PLAIN"})) == "plain":
        return PackedInt4Format(_size(facts, "group_size", 128), activation_scheme(kind, facts))
    if kind in MX:
        four = name_of(facts.get("weight_dtype")) == "float4_e2m1fn_x2"
        return SwizzledFloatsFormat(
            _size(facts, "block_size", 32),
            is_packed=four,
            e8m0_scales=True,
            activations=activation_scheme(kind, facts),
        )
    if kind in NVFP4:
        return SwizzledFloatsFormat(
            16,
            is_packed=True,
            is_scaled=bool(facts.get("use_dynamic_per_tensor_scale", True)),
            activations=activation_scheme(kind, facts),
        )
    raise ModelError(
        f"quantization_config: quant_type: got {config!r:.160}; expected one of {', '.join(READ)} "
        "(four-bit integers as PLAIN), saved as safetensors. Convert the checkpoint with torchao."
    )


def _any_bits(
    facts: Mapping[str, Any], own: str, activations: ActivationScheme | None
) -> StoredFormat:
    """Return the format of integers of one to eight bits, one per byte."""
    dtype = name_of(facts.get(f"{own}dtype", {"_data": "int8"}))
    packing = name_of(facts.get("intx_packing_format"))
    bits = dtype.removeprefix("int")
    if bits not in tuple("12345678") or packing not in ("", "unpacked_to_int8"):
        raise ModelError(
            f"quantization_config: got weights of {dtype!r:.80} as {packing!r:.80}; expected int1 "
            "to int8 as unpacked_to_int8. Convert the checkpoint with torchao."
        )
    group_shape = _group_shape_of(facts.get(f"{own}granularity") or {"_type": "PerAxis"})
    if name_of(facts.get(f"{own}mapping_type", {"_data": "SYMMETRIC"})) == "asymmetric":
        return IntsFormat(int(bits), group_shape, zero=ZEROS, activations=activations, **NAMES)
    return SymmetricIntsFormat(
        int(bits), group_shape, optional=ZEROS, activations=activations, **NAMES
    )


def _of_weights(granularity: Any) -> Any:
    """Return the second of two granularities: the first is for activations."""
    return granularity[-1] if isinstance(granularity, list) and granularity else granularity


def _size(facts: Mapping[str, Any], name: str, usual: int) -> int:
    """Return how many inputs share a scale."""
    size = facts.get(name, usual)
    if type(size) is not int or size < 1:
        raise ModelError(
            f"quantization_config: {name}: got {size!r:.80}; expected a positive number of inputs."
        )
    return size


def _older(group: Any) -> dict[str, Any]:
    return {"_type": "PerGroup", "_data": {"group_size": group}} if group else ROWS


def _group_shape_of(granularity: Any) -> GroupShape:
    """Return which weights share a scale."""
    kind, facts = read_value(granularity)
    group = facts.get("group_size")
    block = facts.get("block_size")
    if kind == "PerTensor":
        return GroupShape(ALL, ALL)
    if (kind == "PerRow" and facts.get("dim", -1) in (-1, 1)) or (
        kind == "PerAxis" and facts.get("axis", 0) == 0
    ):
        return GroupShape(1, ALL)
    if kind == "PerGroup" and isinstance(group, int) and group > 0:
        return GroupShape(1, group)
    if kind == "PerBlock" and is_block_shape(block):
        return GroupShape(block[0], block[1])
    raise ModelError(
        f"quantization_config: granularity: got {granularity!r:.160}; expected PerTensor, PerRow, "
        "PerAxis 0, PerGroup or PerBlock."
    )
