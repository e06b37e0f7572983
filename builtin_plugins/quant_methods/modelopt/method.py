"""Checkpoints of NVIDIA Model Optimizer: one algorithm, or one per layer, and an exclude list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.floats import FloatsFormat, PackedFloatsFormat
from builtin_plugins.quant_methods.common.kv_cache import kv_cache_dtype_of
from builtin_plugins.quant_methods.common.module_names import NameList, read_glob
from builtin_plugins.quant_methods.common.scales import ALL, GroupShape
from builtin_plugins.quant_methods.stored.activations import ActivationScheme
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_objects
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from core.api import EngineConfig, ModelError

MIXED: Final = "MIXED_PRECISION"
ALGORITHMS: Final[Mapping[str, StoredFormat]] = {
    "FP8": FloatsFormat(
        GroupShape(ALL, ALL),
        optional="input_scale",
        activations=ActivationScheme("fp8_e4m3", static="input_scale"),
    ),
    "FP8_PER_CHANNEL_PER_TOKEN": FloatsFormat(
        GroupShape(1, ALL), optional="input_scale", activations=ActivationScheme("fp8_e4m3")
    ),
    "FP8_PB_WO": FloatsFormat(GroupShape(128, 128), optional="input_scale"),
    "MXFP8": FloatsFormat(
        GroupShape(1, 32),
        optional="input_scale",
        e8m0_scales=True,
        activations=ActivationScheme("fp8_e4m3", 32, scale_kind="e8m0_ceil"),
    ),
    "NVFP4": PackedFloatsFormat(
        GroupShape(1, 16),
        weight="weight",
        global_scale="weight_scale_2",
        optional="input_scale",
        activations=ActivationScheme("fp4", 16, scale_kind="e4m3", static="input_scale"),
    ),
}


class ModelOpt(ExcludeListMethod):
    """Read from hf_quant_config.json, or from config.json, where later versions write the same."""

    name = "modelopt"
    example_config: Final = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }

    def __init__(self, config: Any = None, engine: EngineConfig | None = None) -> None:
        super().__init__(
            config,
            NameList(
                read_names(config or {}, "exclude_modules", "ignore"), read_glob, anywhere=True
            ),
            engine,
        )
        self._kv_dtype = kv_cache_dtype_of(
            config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
        )
        self._layers: dict[str, StoredFormat] | None = None
        self._format: StoredFormat | None = None
        if config.get("quant_algo") == MIXED:
            listed = read_objects(config, "quantized_layers")
            self._layers = {
                name: _format(facts.get("quant_algo")) for name, facts in listed.items()
            }
            self._named = NameList(listed, read_glob)
        else:
            self._format = _format(config.get("quant_algo"))

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of all layers, or the layer's own."""
        if self._layers is None:
            return self._format
        named = self._named.find(prefix)
        return None if named is None else self._layers[named]

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format; the head is a linear layer to the tool."""
        return self.choose_format(prefix)

    def kv_dtype(self, prefix: str) -> str | None:
        """Return the KV cache dtype of every attention layer."""
        return self._kv_dtype


def _format(algorithm: Any) -> StoredFormat:
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise ModelError(
            f"quantization_config: quant_algo: got {algorithm!r:.80}; expected one of "
            f"{', '.join(ALGORITHMS)}, or {MIXED} of these. Export the checkpoint with one of "
            "them."
        )
    return ALGORITHMS[algorithm]
