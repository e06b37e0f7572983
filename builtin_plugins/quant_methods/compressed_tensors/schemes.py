"""One group of a compressed-tensors config as a stored format: what `weights` says of numbers, and
`format` of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.floats import FloatsFormat, PackedFloatsFormat
from builtin_plugins.quant_methods.common.ints import IntsFormat, PackedIntsFormat
from builtin_plugins.quant_methods.common.scales import WHOLE, Shared, is_pair
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.stated import section
from core.api import ModelError

BESIDE: Final = "input_scale input_zero_point input_global_scale output_scale output_zero_point"
"""Of activations, which are not rounded by scales that a checkpoint states."""
PLAIN_INTS: Final = ("int-quantized", "naive-quantized")
MX_FLOATS: Final = "mxfp8-quantized"
PLAIN_FLOATS: Final = ("float-quantized", "naive-quantized", MX_FLOATS)
PACKED_FLOATS: Final = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized")
PACKED_INTS: Final = "pack-quantized"
READ: Final = (PACKED_INTS, "int-quantized", *PLAIN_FLOATS, *PACKED_FLOATS)


def scheme(group: Mapping[str, Any], layout: str) -> StoredFormat:
    """Return the format of the weights that `group` describes.

    Raises `ModelError` for one that is not read.
    """
    weights = section(group, "weights")
    kind = str(weights.get("type", "int")).lower()
    bits = weights.get("num_bits", 8)
    layout = str(group.get("format") or layout)
    shared = _shared(weights)
    if layout == PACKED_INTS and kind == "int" and bits in range(1, 9):
        zero = "" if weights.get("symmetric", True) else "weight_zero_point"
        order = "weight_g_idx" if weights.get("actorder") in ("group", "dynamic") else ""
        optional = f"weight_shape {BESIDE}" + ("" if order else " weight_g_idx")
        return PackedIntsFormat(bits, shared, zero=zero, order=order, optional=optional)
    if layout in PLAIN_INTS and kind == "int" and bits in range(1, 9):
        zero = "" if weights.get("symmetric", True) else "weight_zero_point"
        x_bits = _x_bits(group.get("input_activations"), "int", ("token",))
        return IntsFormat(bits, shared, zero=zero, optional=BESIDE, x_bits=x_bits)
    if layout in PLAIN_FLOATS and (kind, bits) == ("float", 8):
        x_bits = _x_bits(group.get("input_activations"), "float", ("token", "group"))
        return FloatsFormat(shared, optional=BESIDE, in_powers=layout == MX_FLOATS, x_bits=x_bits)
    if layout == "nvfp4-pack-quantized" and (kind, bits) == ("float", 4):
        return PackedFloatsFormat(
            shared, whole="weight_global_scale", divides=True, optional=BESIDE
        )
    if layout in PACKED_FLOATS and kind == "float" and bits in (4, 6):
        return PackedFloatsFormat(shared, bits=bits, optional=BESIDE)
    raise ModelError(
        f"quantization_config: weights of {bits!r:.80} bits, type {kind!r:.80}, in format "
        f"{layout!r:.80} are not read. Read are "
        "integers of 1 to 8 bits and floats of 8, 6 and 4 in the formats "
        f"{', '.join(dict.fromkeys(READ))}. Convert the "
        "checkpoint with the tool that wrote it."
    )


def _x_bits(activations: Any, kind: str, strategies: tuple[str, ...]) -> int:
    """Return 8 for activations that are rounded as they come, to eight bits of a kind, each token
    by itself; else 16.
    """
    stated = activations if isinstance(activations, Mapping) else {}
    own = str(stated.get("type", "int")).lower(), stated.get("num_bits")
    as_they_come = stated.get("dynamic") is True and stated.get("symmetric", True) is True
    return 8 if as_they_come and own == (kind, 8) and stated.get("strategy") in strategies else 16


def _shared(weights: Mapping[str, Any]) -> Shared:
    """Return which numbers share a scale."""
    group = weights.get("group_size")
    block = weights.get("block_structure")
    strategy = str(
        weights.get("strategy")
        or ("tensor" if group is None else "channel" if group == -1 else "group")
    )
    if isinstance(block, str):
        block = [int(size) if size.isdigit() else 0 for size in block.split("x")]
    if strategy == "tensor":
        return Shared(WHOLE, WHOLE)
    if strategy == "channel":
        return Shared(1, WHOLE)
    if strategy in ("group", "tensor_group") and isinstance(group, int) and group > 0:
        return Shared(1, group)
    if strategy == "block" and is_pair(block):
        return Shared(block[0], block[1])
    raise ModelError(
        f"quantization_config: strategy {strategy!r:.80} with group_size {group!r:.80} and "
        f"block_structure {block!r:.80} says not "
        "which weights share a scale; restore the config from where the model came."
    )
