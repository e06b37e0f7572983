"""Maps GGUF tensors to Hugging Face weights, with their transforms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine_gguf.config_source import count
from engine_gguf.name_maps import LAYER_PARTS, MODEL_PARTS, NAME_MAPS, NameMap
from engine_gguf.transforms import TRANSFORMS, Transform

_LAYER: Final = re.compile(r"blk\.(\d{1,6})\.(.+)")
_SUFFIXES: Final = ("weight", "bias", "scale")
_BARE: Final = frozenset(
    (
        "A_log",
        "D",
        "dt_bias",
        "e_score_correction_bias",
        "expert_bias",
        "layer_scalar",
        "per_expert_scale",
        "scale",
        "sinks",
    )
)
"""Last name parts without a suffix in checkpoints."""
_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""RoPE factors, which are read with the settings and are no weights."""


@dataclass(frozen=True, slots=True)
class TargetWeight:
    """The Hugging Face weight of a tensor."""

    name: str
    """Name with suffix; `{}` is the number of the expert."""
    transform: Transform | None = None


class TensorNames:
    """The tensor names of one model, by its config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        architecture = config["architectures"][0]
        name_map = NAME_MAPS.get(architecture, NameMap())
        self._layer_parts = {**LAYER_PARTS, **name_map.layer_parts}
        self._model_parts = {**MODEL_PARTS, **name_map.model_parts}
        self._layer = name_map.layer
        self._transforms = TRANSFORMS.get(architecture, {})
        self._choice = 1 if config.get("num_ln_in_parallel_attn") == 2 else 0
        first = count(config, "num_hidden_layers")
        mtp_layers = count(config, "num_nextn_predict_layers")
        self._mtp_layers = range(first, first + mtp_layers)

    def ignores(self, name: str) -> bool:
        """Return whether a tensor is no weight of the model: RoPE factors and MTP layers."""
        found = _LAYER.fullmatch(name)
        return name in _FACTORS or (found is not None and int(found[1]) in self._mtp_layers)

    def knows(self, part: str) -> bool:
        """Return whether a layer's part has a checkpoint name."""
        return part in self._layer_parts

    def target_of(self, name: str) -> TargetWeight | None:
        """Return the weight of a tensor; None for an unknown name."""
        found = _LAYER.fullmatch(name)
        whole = found[2] if found else name
        part, _, suffix = whole.rpartition(".")
        if suffix not in _SUFFIXES:
            part = whole
            suffix = ""
        names = self._layer_parts if found else self._model_parts
        known = names.get(whole) or names.get(part)
        if known is None or (suffix == "scale" and whole not in names):
            return None
        known = known.split("|")[self._choice if "|" in known else 0]
        prefix = self._layer.format(int(found[1])) if found else ""
        return TargetWeight(
            f"{prefix}{known}{_ending(known, part, suffix)}", self._transforms.get(whole)
        )


def _ending(known: str, part: str, suffix: str) -> str:
    """Return the suffix of a checkpoint name."""
    if part.endswith("_exps") and "{}" not in known:  # stacked experts
        return "_bias" if suffix == "bias" else ""
    if not suffix and known.endswith("norm"):  # a converter bug
        return ".weight"
    return "" if not suffix or known.rpartition(".")[2] in _BARE else f".{suffix}"
