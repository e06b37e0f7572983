"""Typed reads of the settings of a GGUF file. Errors name the setting and the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from core.api import ModelError
from engine_gguf.header import Header, printable

LARGEST_COUNT = 1 << 32


class Settings:
    """The settings of one file.

    Names without a dot belong to the architecture: `head_count` is `llama.head_count`.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self.architecture = self.text("general.architecture")

    def get(self, name: str) -> Any:
        """Return a raw setting, None if absent."""
        return self._header.settings.get(name)

    def own(self, name: str) -> Any:
        """Return a raw setting of the architecture, None if absent."""
        return self.get(f"{self.architecture}.{name}")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, value, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        value = self.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, value, "a list of strings")
        return value

    def numbers(self, name: str, length: int) -> np.ndarray[Any, Any] | None:
        """Return a list of `length` numbers, None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != length:
            raise self.wrong(name, value, f"a list of {length} numbers")
        return value

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Return an integer of the architecture; a per-layer list must have equal items."""
        value = self.own(name)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray) and len(set(value.tolist())) == 1:
            value = value.tolist()[0]
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value < LARGEST_COUNT
        ):
            raise self.wrong(
                f"{self.architecture}.{name}", value, f"one integer for all layers, {least} or more"
            )
        return value

    def each(self, name: str, layers: int) -> list[int]:
        """Return an integer per layer; one integer stands for all layers."""
        value = self.own(name)
        if not isinstance(value, np.ndarray):
            return [self.count(name)] * layers
        if (
            len(value) < layers
            or value.dtype.kind not in "iu"
            or not 0 <= value.min() <= value.max() < LARGEST_COUNT
        ):
            raise self.wrong(
                f"{self.architecture}.{name}",
                value,
                f"a list of {layers} integers, one for each layer",
            )
        return [int(each) for each in value[:layers]]

    def largest(self, name: str, default: int) -> int:
        """Return the largest integer of all layers; the default if absent or 0."""
        value = self.own(name)
        if isinstance(value, np.ndarray) and len(value):
            return max(self.each(name, len(value))) or default
        return self.count(name, default, least=0) or default

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number of the architecture."""
        value = self.own(name)
        if value is None and default is not None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            raise self.wrong(f"{self.architecture}.{name}", value, "a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean, by its whole name."""
        value = self.get(name)
        return bool(value) if isinstance(value, (bool, int)) else default

    def token(self, name: str, size: int) -> int | None:
        """Return a token id of a vocabulary of this size, None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            raise self.wrong(name, value, f"one of the {size} tokens")
        return value

    def wrong(self, name: str, value: Any, expected: str) -> ModelError:
        """Return the error for an invalid setting."""
        state = "no value" if value is None else _short(value)
        return ModelError(
            f"{self._header.path}: setting {printable(name)}: got {state}; expected {expected}. "
            "Use another file, or describe the model with --hf-config-path."
        )


def _short(value: Any) -> str:
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
        return f"a list of {len(value)}"
    return f"{value!r:.60}"
