"""Which layers of a compressed-tensors checkpoint are quantized, and by which group of its config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.caches import kv_dtype_of
from builtin_plugins.quant_methods.compressed_tensors.schemes import scheme
from core.api import ModelError
from core.quantization.formats import StoredFormat
from core.quantization.method import StoredMethod

LINEAR: Final = "Linear"
EMBEDDING: Final = "Embedding"
REGEX: Final = "re:"


class CompressedTensors(StoredMethod):
    """What llm-compressor and others write."""

    name = "compressed-tensors"
    example_config: Final = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128},
            }
        },
        "ignore": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        sparsity = config.get("sparsity_config") or {}
        if sparsity.get("format", "dense") != "dense":
            raise ModelError(
                f"quantization_config: sparsity_config has format {sparsity['format']!r}, which is not read: its weights "
                "have holes. Write the checkpoint again with dense weights."
            )
        transforms = (config.get("transform_config") or {}).get("config_groups")
        if transforms:
            raise ModelError(
                f"quantization_config: transform_config has {', '.join(transforms)}: rotations of activations, which are "
                "not computed here. Take a checkpoint without them."
            )
        self._kv_dtype = kv_dtype_of(config.get("kv_cache_scheme"))
        self._ignore = tuple(config.get("ignore") or ())
        self._groups: list[tuple[tuple[str, ...], StoredFormat | None]] = []
        for name, group in (config.get("config_groups") or {}).items():
            if not isinstance(group, Mapping):
                raise ModelError(f"quantization_config: config_groups.{name} is {group!r:.80}; it is an object.")
            stored = scheme(group, str(config.get("format"))) if group.get("weights") else None
            self._groups.append((tuple(group.get("targets") or ()), stored))

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return the format of the group that names the layer, or one of its kind."""
        return self._of(prefix, LINEAR)

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the same for the head, which is a linear layer to the tools."""
        return self._of(prefix, LINEAR)

    def decide_embedding(self, prefix: str) -> StoredFormat | None:
        """Return the format of embeddings, where a group names them."""
        return self._of(prefix, EMBEDDING)

    def kv_dtype(self, prefix: str) -> str | None:
        """Return what every attention caches."""
        return self._kv_dtype

    def _of(self, prefix: str, kind: str) -> StoredFormat | None:
        """Of several groups, the one that names the layer counts before a pattern, and a pattern before its kind."""
        if _matches(prefix, self._ignore) or kind in self._ignore:
            return None
        for fits in (_is_named, _is_matched, lambda _, targets: kind in targets):
            for targets, stored in self._groups:
                if fits(prefix, targets):
                    return stored
        return None


def _matches(prefix: str, targets: Iterable[str]) -> bool:
    return _is_named(prefix, targets) or _is_matched(prefix, targets)


def _is_named(prefix: str, targets: Iterable[str]) -> bool:
    return prefix in targets


def _is_matched(prefix: str, targets: Iterable[str]) -> bool:
    return any(target.startswith(REGEX) and re.match(target.removeprefix(REGEX), prefix) for target in targets)
