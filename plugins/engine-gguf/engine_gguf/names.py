"""Where a tensor of a GGUF file goes: which Hugging Face weight it is, and what is done to it on
the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine_gguf.changes import CHANGES, Change
from engine_gguf.counts import count
from engine_gguf.spelling import INSIDE, OUTSIDE, SPELLINGS, Spelling

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
"""Last parts of names that have no suffix in checkpoints."""
_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Read with the settings: they are no weights."""


@dataclass(frozen=True, slots=True)
class Place:
    """What becomes of a tensor."""

    name: str
    """Of the Hugging Face weight, suffix included; with `{}` for the number of the expert."""
    change: Change | None = None


class Names:
    """Those of one model, by its config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        architecture = config["architectures"][0]
        spelling = SPELLINGS.get(architecture, Spelling())
        self._inside = {**INSIDE, **spelling.inside}
        self._outside = {**OUTSIDE, **spelling.outside}
        self._layer = spelling.layer
        self._changes = CHANGES.get(architecture, {})
        self._choice = 1 if config.get("num_ln_in_parallel_attn") == 2 else 0
        first = count(config, "num_hidden_layers")
        further = count(config, "num_nextn_predict_layers")
        self._further = range(first, first + further)

    def ignores(self, name: str) -> bool:
        """Say whether a tensor is no weight of the model: factors, and layers that only guess
        further tokens.
        """
        found = _LAYER.fullmatch(name)
        return name in _FACTORS or (found is not None and int(found[1]) in self._further)

    def knows(self, part: str) -> bool:
        """Say whether a layer's part has a name of its own in the checkpoint."""
        return part in self._inside

    def place(self, name: str) -> Place | None:
        """Return where a tensor goes; None for one that there is no name for."""
        found = _LAYER.fullmatch(name)
        whole = found[2] if found else name
        part, _, suffix = whole.rpartition(".")
        if suffix not in _SUFFIXES:
            part = whole
            suffix = ""
        names = self._inside if found else self._outside
        known = names.get(whole) or names.get(part)
        if known is None or (suffix == "scale" and whole not in names):
            return None
        known = known.split("|")[self._choice if "|" in known else 0]
        prefix = self._layer.format(int(found[1])) if found else ""
        return Place(f"{prefix}{known}{_ending(known, part, suffix)}", self._changes.get(whole))


def _ending(known: str, part: str, suffix: str) -> str:
    """Return what a checkpoint puts behind a name."""
    if part.endswith("_exps") and "{}" not in known:  # the tensor of all experts
        return "_bias" if suffix == "bias" else ""
    if not suffix and known.endswith("norm"):  # a converter's slip
        return ".weight"
    return "" if not suffix or known.rpartition(".")[2] in _BARE else f".{suffix}"
