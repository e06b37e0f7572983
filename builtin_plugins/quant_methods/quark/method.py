"""Which layers of an AMD Quark checkpoint are quantized, and how: one setting for all, others by
name, and names of plain ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.floats import FloatsFormat, PackedFloatsFormat
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.common.left_out import AllButListed
from builtin_plugins.quant_methods.common.names import Listed, wildcards
from builtin_plugins.quant_methods.common.scales import WHOLE, Shared
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.stated import names, section, sections
from core.api import ModelError

BESIDE: Final = "input_scale input_zero_point output_scale output_zero_point weight_zero_point"
"""Of activations, which are not rounded here; zero points of symmetric weights are all zero."""
EIGHT: Final = ("fp8_e4m3", "fp8_e5m2")
SIX: Final = {"fp6_e2m3": 2, "fp6_e3m2": 3}
"""Floats of six bits, and how many of these are an exponent's."""
LINEAR: Final = "Linear"
"""The kind of layer that a setting by kind may be about; what others have is no weight of ours."""
ROTATIONS: Final = ("online_r1_rotation", "r4")
"""Of keys and queries alike (r3) products stay as they are."""
MX_GROUP: Final = 32
"""Floats of four and six bits that share an exponent."""


class Quark(AllButListed):
    """What AMD's Quark exports as safetensors."""

    name = "quark"
    example_config: Final = {
        "quant_method": "quark",
        "global_quant_config": {
            "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "symmetric": True}
        },
        "exclude": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config, Listed(names(config or {}, "exclude"), wildcards))
        export = section(config, "export")
        if export.get("weight_format", "real_quantized") != "real_quantized":
            raise ModelError(
                f"quantization_config: export.weight_format is {export['weight_format']!r:.80}; "
                "read is real_quantized. Export "
                "the checkpoint so."
            )
        turned = sorted(_turned(config.get("algo_config")))
        if turned:
            raise ModelError(
                f"quantization_config: algo_config has {', '.join(turned)}: activations are "
                "rotated before they are multiplied by "
                "these weights, which is not computed here. Quantize the model without them."
            )
        self._layers = {
            name: _format(facts) for name, facts in sections(config, "layer_quant_config").items()
        }
        self._named = Listed(self._layers, wildcards)
        kinds = sections(config, "layer_type_quant_config")
        self._format = _format(
            kinds[LINEAR] if LINEAR in kinds else section(config, "global_quant_config")
        )

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of the first name or pattern that fits, or that of all others."""
        named = self._named.first(prefix)
        return self._format if named is None else self._layers[named]

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the same for the head, which is a linear layer to the tool."""
        return self.decide(prefix)


def _turned(algorithms: Any) -> set[str]:
    """Return the rotations that a model computes; others are part of its weights."""
    stated = algorithms if isinstance(algorithms, (list, tuple)) else [algorithms]
    return {
        name for own in stated if isinstance(own, Mapping) for name in ROTATIONS if own.get(name)
    }


def _format(facts: Mapping[str, Any]) -> StoredFormat | None:
    """Return the format of weights; None: they are plain."""
    weights = section(facts, "weight")
    if not weights:
        return None
    dtype = str(weights.get("dtype"))
    scheme = str(weights.get("qscheme"))
    group = weights.get("group_size")
    shared = {"per_tensor": Shared(WHOLE, WHOLE), "per_channel": Shared(1, WHOLE)}.get(scheme)
    if dtype in EIGHT and shared is not None:
        return FloatsFormat(shared, optional=BESIDE)
    if dtype == "int8" and shared is not None and weights.get("symmetric", True):
        return IntsFormat(8, shared, optional=BESIDE)
    if scheme == "per_group" and group == MX_GROUP and dtype == "fp4":
        return PackedFloatsFormat(Shared(1, group), weight="weight", optional=BESIDE)
    if scheme == "per_group" and group == MX_GROUP and dtype in SIX:
        return PackedFloatsFormat(
            Shared(1, group), bits=6, exponent_bits=SIX[dtype], weight="weight", optional=BESIDE
        )
    raise ModelError(
        f"quantization_config: weights of dtype {dtype!r:.80}, {scheme!r:.80}, group_size "
        f"{group!r:.80}, symmetric "
        f"{weights.get('symmetric')!r:.80} are not read. Read are {', '.join(EIGHT)} and symmetric "
        "int8 per_tensor and per_channel, "
        f"and fp4, {', '.join(SIX)} per_group of {MX_GROUP}."
    )
