"""compressed-tensors checkpoints: which config group quantizes a layer, and the group's format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.floats import FloatsFormat, PackedFloatsFormat
from builtin_plugins.quant_methods.common.ints import IntsFormat, PackedIntsFormat
from builtin_plugins.quant_methods.common.kv_cache import kv_cache_dtype_of
from builtin_plugins.quant_methods.common.module_names import NameList
from builtin_plugins.quant_methods.common.scales import ALL, GroupShape, is_block_shape
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_object, read_objects
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from core.api import ModelError

LINEAR: Final = "Linear"
EMBEDDING: Final = "Embedding"


class CompressedTensors(ExcludeListMethod):
    """Checkpoints of llm-compressor and others."""

    name = "compressed-tensors"
    example_config: Final = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": 128,
                },
            }
        },
        "ignore": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config, NameList(read_names(config or {}, "ignore")))
        sparsity = read_object(config, "sparsity_config")
        if sparsity.get("format", "dense") != "dense":
            raise ModelError(
                f"quantization_config: sparsity_config.format: got {sparsity['format']!r:.80}; "
                "expected dense weights. Write the checkpoint again without sparsity."
            )
        transforms = read_object(read_object(config, "transform_config"), "config_groups")
        if transforms:
            raise ModelError(
                f"quantization_config: transform_config: got {', '.join(transforms):.80}; "
                "activation rotations are not supported. Use a checkpoint without them."
            )
        self._kv_dtype = kv_cache_dtype_of(config.get("kv_cache_scheme"))
        self._groups: list[tuple[NameList, StoredFormat | None]] = []
        for group in read_objects(config, "config_groups").values():
            stored = scheme(group, str(config.get("format"))) if group.get("weights") else None
            self._groups.append((NameList(read_names(group, "targets")), stored))

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of the group that names the layer or its type."""
        return self._of(prefix, LINEAR)

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format; the head is a linear layer to the tools."""
        return self.choose_format(prefix)

    def choose_embedding_format(self, prefix: str) -> StoredFormat | None:
        """Return the format of the embedding, if a group names it."""
        return None if self._plain.find(prefix) else self._of(prefix, EMBEDDING)

    def kv_dtype(self, prefix: str) -> str | None:
        """Return the KV cache dtype of every attention layer."""
        return self._kv_dtype

    def _of(self, prefix: str, kind: str) -> StoredFormat | None:
        """Return the format of a layer: names precede patterns, patterns precede layer types."""
        if self._plain.find_name(kind):
            return None
        for find in (
            NameList.find_name,
            NameList.find_pattern,
            lambda targets, _: targets.find_name(kind),
        ):
            for targets, stored in self._groups:
                if find(targets, prefix):
                    return stored
        return None


ACTIVATION_TENSORS: Final = (
    "input_scale input_zero_point input_global_scale output_scale output_zero_point"
)
"""Activation tensors, which are not needed: activation scales are computed at run time."""
PLAIN_INTS: Final = ("int-quantized", "naive-quantized")
MX_FLOATS: Final = "mxfp8-quantized"
PLAIN_FLOATS: Final = ("float-quantized", "naive-quantized", MX_FLOATS)
PACKED_FLOATS: Final = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized")
PACKED_INTS: Final = "pack-quantized"
READ: Final = (PACKED_INTS, "int-quantized", *PLAIN_FLOATS, *PACKED_FLOATS)


def scheme(group: Mapping[str, Any], layout: str) -> StoredFormat:
    """Return the weight format of a config group. Raises `ModelError` for an unsupported one."""
    weights = read_object(group, "weights")
    kind = str(weights.get("type", "int")).lower()
    bits = weights.get("num_bits", 8)
    layout = str(group.get("format") or layout)
    group_shape = _group_shape_of(weights)
    if layout == PACKED_INTS and kind == "int" and bits in range(1, 9):
        zero = "" if weights.get("symmetric", True) else "weight_zero_point"
        order = "weight_g_idx" if weights.get("actorder") in ("group", "dynamic") else ""
        optional = f"weight_shape {ACTIVATION_TENSORS}" + ("" if order else " weight_g_idx")
        return PackedIntsFormat(bits, group_shape, zero=zero, order=order, optional=optional)
    if layout in PLAIN_INTS and kind == "int" and bits in range(1, 9):
        zero = "" if weights.get("symmetric", True) else "weight_zero_point"
        activation_bits = _activation_bits(group.get("input_activations"), "int", ("token",))
        return IntsFormat(
            bits,
            group_shape,
            zero=zero,
            optional=ACTIVATION_TENSORS,
            activation_bits=activation_bits,
        )
    if layout in PLAIN_FLOATS and (kind, bits) == ("float", 8):
        activation_bits = _activation_bits(
            group.get("input_activations"), "float", ("token", "group")
        )
        return FloatsFormat(
            group_shape,
            optional=ACTIVATION_TENSORS,
            e8m0_scales=layout == MX_FLOATS,
            activation_bits=activation_bits,
        )
    if layout == "nvfp4-pack-quantized" and (kind, bits) == ("float", 4):
        return PackedFloatsFormat(
            group_shape,
            global_scale="weight_global_scale",
            divides_scales=True,
            optional=ACTIVATION_TENSORS,
        )
    if layout in PACKED_FLOATS and kind == "float" and bits in (4, 6):
        return PackedFloatsFormat(group_shape, bits=bits, optional=ACTIVATION_TENSORS)
    raise ModelError(
        f"quantization_config: got weights of {bits!r:.80} bits, type {kind!r:.80}, format "
        f"{layout!r:.80}; expected integers of 1 to 8 bits or floats of 8, 6 or 4 bits in a format "
        f"of {', '.join(dict.fromkeys(READ))}. Convert the checkpoint with the tool that wrote it."
    )


def _activation_bits(activations: Any, kind: str, strategies: tuple[str, ...]) -> int:
    """Return 8 if activations are dynamically rounded to eight bits per token, else 16."""
    stated = activations if isinstance(activations, Mapping) else {}
    own = str(stated.get("type", "int")).lower(), stated.get("num_bits")
    as_they_come = stated.get("dynamic") is True and stated.get("symmetric", True) is True
    return 8 if as_they_come and own == (kind, 8) and stated.get("strategy") in strategies else 16


def _group_shape_of(weights: Mapping[str, Any]) -> GroupShape:
    """Return which weights share a scale."""
    group = weights.get("group_size")
    block = weights.get("block_structure")
    strategy = str(
        weights.get("strategy")
        or ("tensor" if group is None else "channel" if group == -1 else "group")
    )
    if isinstance(block, str):
        block = [int(size) if size.isdigit() else 0 for size in block.split("x")]
    if strategy == "tensor":
        return GroupShape(ALL, ALL)
    if strategy == "channel":
        return GroupShape(1, ALL)
    if strategy in ("group", "tensor_group") and isinstance(group, int) and group > 0:
        return GroupShape(1, group)
    if strategy == "block" and is_block_shape(block):
        return GroupShape(block[0], block[1])
    raise ModelError(
        f"quantization_config: strategy: got {strategy!r:.80} with group_size {group!r:.80} and "
        f"block_structure {block!r:.80}; expected a strategy that defines which weights share a "
        "scale. Restore the original config."
    )
