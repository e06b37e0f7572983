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
from builtin_plugins.quant_methods.compressed_tensors.sparse import FORMATS as SPARSE_FORMATS
from builtin_plugins.quant_methods.compressed_tensors.sparse import MASK, SparseFormat
from builtin_plugins.quant_methods.stored.activations import ActivationScheme, warn_unsupported
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_object, read_objects
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from core.api import EngineConfig, ModelError

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

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        super().__init__(config, NameList(read_names(config or {}, "ignore")), engine)
        sparsity = read_object(config, "sparsity_config").get("format", "dense")
        if sparsity not in ("dense", *SPARSE_FORMATS):
            raise ModelError(
                f"quantization_config: sparsity_config.format: got {sparsity!r:.80}; expected "
                f"dense weights or {' or '.join(SPARSE_FORMATS)}. Write the checkpoint again in "
                "one of these."
            )
        self._is_sparse = sparsity != "dense"
        transforms = read_object(read_object(config, "transform_config"), "config_groups")
        if transforms:
            raise ModelError(
                f"quantization_config: transform_config: got {', '.join(transforms):.80}; "
                "activation rotations are not supported. Use a checkpoint without them."
            )
        self._kv_dtype = kv_cache_dtype_of(config.get("kv_cache_scheme"))
        self._groups: list[tuple[NameList, StoredFormat | None]] = []
        for group in read_objects(config, "config_groups").values():
            stored = None
            if group.get("weights"):
                optional = ACTIVATION_TENSORS + ("" if self._kv_dtype else f" {OUTPUT_SCALE}")
                stored = scheme(group, str(config.get("format")), optional)
            self._groups.append((NameList(read_names(group, "targets")), stored))

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the format, of a sparse weight if the checkpoint has a mask of it."""
        stored = super().choose_format(prefix)
        has_mask = self._is_sparse and f"{prefix}.{MASK}" in self._checkpoint_dtypes
        return SparseFormat(stored) if has_mask else stored

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


ACTIVATION_TENSORS: Final = "input_scale input_zero_point input_global_scale output_zero_point"
"""Tensors about activations, which a scheme may need."""
OUTPUT_SCALE: Final = "output_scale"
"""Scale of a layer's outputs: of cached keys and values if the config has a scheme for them."""
PLAIN_INTS: Final = ("int-quantized", "naive-quantized")
MX_FLOATS: Final = "mxfp8-quantized"
PLAIN_FLOATS: Final = ("float-quantized", "naive-quantized", MX_FLOATS)
PACKED_FLOATS: Final = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized")
PACKED_INTS: Final = "pack-quantized"
READ: Final = (PACKED_INTS, "int-quantized", *PLAIN_FLOATS, *PACKED_FLOATS)


def scheme(
    group: Mapping[str, Any], layout: str, activation_tensors: str = ACTIVATION_TENSORS
) -> StoredFormat:
    """Return the weight format of a config group. Raises `ModelError` for an unsupported one."""
    weights = read_object(group, "weights")
    kind = str(weights.get("type", "int")).lower()
    bits = weights.get("num_bits", 8)
    layout = str(group.get("format") or layout)
    group_shape = _group_shape_of(weights)
    inputs = _activations(read_object(group, "input_activations"), layout)
    if layout == PACKED_INTS and kind == "int" and bits in range(1, 9):
        zero = "" if weights.get("symmetric", True) else "weight_zero_point"
        order = "weight_g_idx" if weights.get("actorder") in ("group", "dynamic") else ""
        optional = f"weight_shape {activation_tensors}" + ("" if order else " weight_g_idx")
        return PackedIntsFormat(
            bits, group_shape, zero=zero, order=order, optional=optional, activations=inputs
        )
    if layout in PLAIN_INTS and kind == "int" and bits in range(1, 9):
        zero = "" if weights.get("symmetric", True) else "weight_zero_point"
        return IntsFormat(
            bits, group_shape, zero=zero, optional=activation_tensors, activations=inputs
        )
    if layout in PLAIN_FLOATS and (kind, bits) == ("float", 8):
        return FloatsFormat(
            group_shape,
            optional=activation_tensors,
            e8m0_scales=layout == MX_FLOATS,
            activations=inputs,
        )
    if layout == "nvfp4-pack-quantized" and (kind, bits) == ("float", 4):
        return PackedFloatsFormat(
            group_shape,
            global_scale="weight_global_scale",
            divides_scales=True,
            optional=activation_tensors,
            activations=inputs,
        )
    if layout in PACKED_FLOATS and kind == "float" and bits in (4, 6):
        return PackedFloatsFormat(
            group_shape, bits=bits, optional=activation_tensors, activations=inputs
        )
    raise ModelError(
        f"quantization_config: got weights of {bits!r:.80} bits, type {kind!r:.80}, format "
        f"{layout!r:.80}; expected integers of 1 to 8 bits or floats of 8, 6 or 4 bits in a format "
        f"of {', '.join(dict.fromkeys(READ))}. Convert the checkpoint with the tool that wrote it."
    )


FLOAT_NUMBERS: Final = {8: "fp8_e4m3", 6: "fp6_e2m3", 4: "fp4"}


def _activations(facts: Mapping[str, Any], layout: str) -> ActivationScheme | None:
    """Return how a group rounds inputs; None: not, or in a way that is logged as unsupported."""
    if not facts:
        return None
    bits = facts.get("num_bits", 8)
    bits = bits if type(bits) is int else 0
    is_float = str(facts.get("type", "int")).lower() == "float"
    number = FLOAT_NUMBERS.get(bits, "") if is_float else f"int{bits}" * (bits in range(2, 9))
    group = facts.get("group_size")
    strategy = facts.get("strategy") or ("tensor" if group is None else "group")
    is_symmetric = facts.get("symmetric", True) is not False
    dynamic = facts.get("dynamic", False)
    size = group if type(group) is int and group > 0 else 0
    if number and strategy == "tensor_group" and size:
        static = "" if dynamic is True else "input_global_scale"
        return ActivationScheme(number, size, scale_kind="e4m3", static=static, is_reciprocal=True)
    if number and dynamic is True and strategy == "group" and size:
        has_exponents = "uint8" in str(facts.get("scale_dtype")) or layout.startswith("mx")
        return ActivationScheme(
            number, size, is_symmetric, scale_kind="e8m0" if has_exponents else "float"
        )
    if number and dynamic is True and strategy in ("token", "tensor"):
        return ActivationScheme(number, is_symmetric=is_symmetric)
    if number and dynamic is False and strategy == "tensor":
        zero = "" if is_symmetric else "input_zero_point"
        return ActivationScheme(
            number, is_symmetric=is_symmetric, static="input_scale", static_zero=zero
        )
    warn_unsupported("input_activations", facts)
    return None


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
