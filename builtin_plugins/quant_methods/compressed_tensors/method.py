"""Which layers of a compressed-tensors checkpoint are quantized, and by which group of its config."""

from __future__ import annotations

from typing import Any, Final

from builtin_plugins.quant_methods.common.caches import kv_dtype_of
from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed
from builtin_plugins.quant_methods.compressed_tensors.schemes import scheme
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.stated import names, section, sections
from core.api import ModelError

LINEAR: Final = "Linear"
EMBEDDING: Final = "Embedding"


class CompressedTensors(AllButListed):
    """What llm-compressor and others write."""

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
        super().__init__(config, Listed(names(config or {}, "ignore")))
        sparsity = section(config, "sparsity_config")
        if sparsity.get("format", "dense") != "dense":
            raise ModelError(
                f"quantization_config: sparsity_config has format {sparsity['format']!r:.80}, "
                "which is not read: its weights "
                "have holes. Write the checkpoint again with dense weights."
            )
        transforms = section(section(config, "transform_config"), "config_groups")
        if transforms:
            raise ModelError(
                f"quantization_config: transform_config has {', '.join(transforms):.80}: rotations "
                "of activations, which are "
                "not computed here. Take a checkpoint without them."
            )
        self._kv_dtype = kv_dtype_of(config.get("kv_cache_scheme"))
        self._groups: list[tuple[Listed, StoredFormat | None]] = []
        for group in sections(config, "config_groups").values():
            stored = scheme(group, str(config.get("format"))) if group.get("weights") else None
            self._groups.append((Listed(names(group, "targets")), stored))

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of the group that names the layer, or one of its kind."""
        return self._of(prefix, LINEAR)

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the same for the head, which is a linear layer to the tools."""
        return self.decide(prefix)

    def decide_embedding(self, prefix: str) -> StoredFormat | None:
        """Return the format of embeddings, where a group names them."""
        return None if self._plain.find(prefix) else self._of(prefix, EMBEDDING)

    def kv_dtype(self, prefix: str) -> str | None:
        """Return what every attention caches."""
        return self._kv_dtype

    def _of(self, prefix: str, kind: str) -> StoredFormat | None:
        """Of several groups, the one that names the layer counts before a pattern, and a pattern
        before its kind.
        """
        if self._plain.name(kind):
            return None
        for find in (Listed.name, Listed.pattern, lambda targets, _: targets.name(kind)):
            for targets, stored in self._groups:
                if find(targets, prefix):
                    return stored
        return None
