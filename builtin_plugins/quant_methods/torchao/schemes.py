"""One config of torchao as a stored format: which tensor type it makes, and how that lies in a
safetensors file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.floats import FloatsFormat
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.common.scales import WHOLE, Shared, is_pair
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.stated import section
from builtin_plugins.quant_methods.torchao.format import (
    CODES,
    SCALES,
    ZEROS,
    NibblesFormat,
    SwizzledFloats,
    SymmetricInts,
)
from core.api import ModelError

BESIDE: Final = "_weight_act_quant_scale _weight_act_quant_zero_point"
"""Of activations, which are not rounded here."""
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
"""And what their fields that are about weights begin with."""
INT4: Final = ("Int4WeightOnlyConfig", "Float8DynamicActivationInt4WeightConfig")
MX: Final = ("MXDynamicActivationMXWeightConfig", "MXFPInferenceConfig")
NVFP4: Final = (
    "NVFP4WeightOnlyConfig",
    "NVFP4DynamicActivationNVFP4WeightConfig",
    "NVFP4InferenceConfig",
)
READ: Final = (*INT8, *FLOAT8, *INTX, *INT4, *MX, *NVFP4)


def scheme(config: Any) -> StoredFormat | None:
    """Return the format of the weights that a config makes; None: they are plain.

    Raises `ModelError` for one that is not read.
    """
    if config is None:
        return None
    kind, facts = _read(config)
    if kind in INT8:
        shared = _shared(_of_weights(facts.get("granularity")) or _older(facts.get("group_size")))
        return SymmetricInts(8, shared, optional=f"{ZEROS} {BESIDE}", **NAMES)
    if kind in FLOAT8:
        default = ROWS if kind == FLOAT8[0] else {"_type": "PerTensor"}
        return FloatsFormat(
            _shared(_of_weights(facts.get("granularity")) or default), optional=BESIDE, **NAMES
        )
    if kind in INTX:
        return _any_bits(facts, INTX[kind])
    if kind in INT4 and _name(facts.get("int4_packing_format", {"_data": "PLAIN"})) == "plain":
        return NibblesFormat(_size(facts, "group_size", 128))
    if kind in MX:
        four = _name(facts.get("weight_dtype")) == "float4_e2m1fn_x2"
        return SwizzledFloats(_size(facts, "block_size", 32), is_packed=four, in_powers=True)
    if kind in NVFP4:
        return SwizzledFloats(
            16, is_packed=True, is_scaled=bool(facts.get("use_dynamic_per_tensor_scale", True))
        )
    raise ModelError(
        f"quantization_config: quant_type {config!r:.160} is not read. Read are {', '.join(READ)}, "
        "integers of four bits as "
        "PLAIN, and what is saved as safetensors. Convert the checkpoint with torchao."
    )


def _any_bits(facts: Mapping[str, Any], own: str) -> StoredFormat:
    """Return the format of integers of one to eight bits, a byte each."""
    dtype = _name(facts.get(f"{own}dtype", {"_data": "int8"}))
    packing = _name(facts.get("intx_packing_format"))
    bits = dtype.removeprefix("int")
    if bits not in tuple("12345678") or packing not in ("", "unpacked_to_int8"):
        raise ModelError(
            f"quantization_config: weights of {dtype!r:.80} as {packing!r:.80} are not read; read "
            "are int1 to int8 as "
            "unpacked_to_int8. Convert the checkpoint with torchao."
        )
    shared = _shared(facts.get(f"{own}granularity") or {"_type": "PerAxis"})
    if _name(facts.get(f"{own}mapping_type", {"_data": "SYMMETRIC"})) == "asymmetric":
        return IntsFormat(int(bits), shared, zero=ZEROS, **NAMES)
    return SymmetricInts(int(bits), shared, optional=ZEROS, **NAMES)


def _read(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of one of torchao's types, and its fields; neither of what is none of them."""
    return (
        (str(value.get("_type")), section(value, "_data"))
        if isinstance(value, Mapping)
        else ("", {})
    )


def _of_weights(granularity: Any) -> Any:
    """Return the second of two: the first is that of activations."""
    return granularity[-1] if isinstance(granularity, list) and granularity else granularity


def _size(facts: Mapping[str, Any], name: str, usual: int) -> int:
    """Return how many inputs share a scale."""
    size = facts.get(name, usual)
    if type(size) is not int or size < 1:
        raise ModelError(
            f"quantization_config: {name} is {size!r:.80}; it is a number of inputs that share a "
            "scale."
        )
    return size


def _older(group: Any) -> dict[str, Any]:
    return {"_type": "PerGroup", "_data": {"group_size": group}} if group else ROWS


def _shared(granularity: Any) -> Shared:
    """Return which numbers share a scale."""
    kind, facts = _read(granularity)
    group = facts.get("group_size")
    block = facts.get("block_size")
    if kind == "PerTensor":
        return Shared(WHOLE, WHOLE)
    if (kind == "PerRow" and facts.get("dim", -1) in (-1, 1)) or (
        kind == "PerAxis" and facts.get("axis", 0) == 0
    ):
        return Shared(1, WHOLE)
    if kind == "PerGroup" and isinstance(group, int) and group > 0:
        return Shared(1, group)
    if kind == "PerBlock" and is_pair(block):
        return Shared(block[0], block[1])
    raise ModelError(
        f"quantization_config: granularity {granularity!r:.160} says not which weights share a "
        "scale; read are PerTensor, "
        "PerRow, PerAxis 0, PerGroup and PerBlock."
    )


def _name(value: Any) -> str:
    """Return the name of a type or of a choice, as torchao writes them: {"_type": ..., "_data":
    name}.
    """
    name = value.get("_data") if isinstance(value, Mapping) else value
    return str(name or "").lower()
