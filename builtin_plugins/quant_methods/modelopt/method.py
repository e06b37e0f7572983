"""Checkpoints of NVIDIA's Model Optimizer: one algorithm for all layers, or one for each, and names
of what stays plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.caches import kv_dtype_of
from builtin_plugins.quant_methods.common.floats import FloatsFormat, PackedFloatsFormat
from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed, wildcards
from builtin_plugins.quant_methods.common.scales import WHOLE, Shared
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.stated import names, sections
from core.api import ModelError

MIXED: Final = "MIXED_PRECISION"
ALGORITHMS: Final[Mapping[str, StoredFormat]] = {
    "FP8": FloatsFormat(Shared(WHOLE, WHOLE), optional="input_scale", x_bits=8),
    "FP8_PER_CHANNEL_PER_TOKEN": FloatsFormat(Shared(1, WHOLE), optional="input_scale", x_bits=8),
    "FP8_PB_WO": FloatsFormat(Shared(128, 128), optional="input_scale"),
    "MXFP8": FloatsFormat(Shared(1, 32), optional="input_scale", in_powers=True),
    "NVFP4": PackedFloatsFormat(
        Shared(1, 16), weight="weight", whole="weight_scale_2", optional="input_scale"
    ),
}


class ModelOpt(AllButListed):
    """Read from hf_quant_config.json, or from config.json, where later versions write the same."""

    name = "modelopt"
    example_config: Final = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config,
            Listed(names(config or {}, "exclude_modules", "ignore"), wildcards, anywhere=True),
        )
        self._kv_dtype = kv_dtype_of(
            config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
        )
        self._layers: dict[str, StoredFormat] | None = None
        self._format: StoredFormat | None = None
        if config.get("quant_algo") == MIXED:
            listed = sections(config, "quantized_layers")
            self._layers = {
                name: _format(facts.get("quant_algo")) for name, facts in listed.items()
            }
            self._named = Listed(listed, wildcards)
        else:
            self._format = _format(config.get("quant_algo"))

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of all layers, or the layer's own."""
        if self._layers is None:
            return self._format
        named = self._named.find(prefix)
        return None if named is None else self._layers[named]

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the same for the head, which is a linear layer to the tool."""
        return self.decide(prefix)

    def kv_dtype(self, prefix: str) -> str | None:
        """Return what every attention caches."""
        return self._kv_dtype


def _format(algorithm: Any) -> StoredFormat:
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise ModelError(
            f"quantization_config: quant_algo is {algorithm!r:.80}; read are "
            f"{', '.join(ALGORITHMS)} and {MIXED} of these. "
            "Export the checkpoint with one of them."
        )
    return ALGORITHMS[algorithm]
