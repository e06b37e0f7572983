"""What a config is made from, and how facts are taken out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine_gguf.header import Stored
from engine_gguf.settings import Settings

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Given:
    """The header of a model's files."""

    settings: Settings
    tensors: Mapping[str, Stored]
    factors: Mapping[str, list[float]]
    """What rotary angles are divided by, by the names of the tensors that say it."""

    def has(self, name: str) -> bool:
        """Say whether the file has a tensor."""
        return name in self.tensors

    def numbers(self, **names: str) -> Fields:
        """Return those of the settings of these names that there are, as the fields that they are
        given for.
        """
        settings = self.settings
        return {
            field: settings.number(name)
            for field, name in names.items()
            if settings.own(name) is not None
        }

    def windows(self, layers: int, every: int) -> Fields:
        """Return which layers see no further than a window: as the file says, else all but each
        `every`-th.
        """
        settings = self.settings
        size = settings.count("attention.sliding_window", 0, least=0)
        if not size:
            return {"sliding_window": None}
        pattern = settings.own("attention.sliding_window_pattern")
        if isinstance(pattern, np.ndarray):
            if len(pattern) < layers:
                name = f"{settings.architecture}.attention.sliding_window_pattern"
                raise settings.wrong(name, pattern, f"a list of {layers}, one for each layer")
            within = pattern.astype(bool).tolist()[:layers]
        else:
            every = settings.count("attention.sliding_window_pattern", every)
            within = [(layer + 1) % every != 0 for layer in range(layers)]
        kinds = ["sliding_attention" if each else "full_attention" for each in within]
        return {"sliding_window": size, "layer_types": kinds}
