"""The GGUF header that a config is built from, and typed reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine_gguf.header import TensorEntry
from engine_gguf.settings import Settings

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The settings and tensors of a model's files."""

    settings: Settings
    tensors: Mapping[str, TensorEntry]
    factors: Mapping[str, list[float]]
    """RoPE frequency factors, by tensor name."""

    def has(self, name: str) -> bool:
        """Return whether the file has a tensor."""
        return name in self.tensors

    def numbers(self, **names: str) -> Fields:
        """Return the fields of these numeric settings, by field name, without absent ones."""
        settings = self.settings
        return {
            field: settings.number(name)
            for field, name in names.items()
            if settings.own(name) is not None
        }

    def windows(self, layers: int, every: int) -> Fields:
        """Return the sliding-window layers: as the file states, else all but every `every`-th."""
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


def count(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these fields that is a positive integer, else 0.

    The model itself rejects invalid fields.
    """
    return next(
        (config[name] for name in names if type(config.get(name)) is int and config[name] > 0), 0
    )
