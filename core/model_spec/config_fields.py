"""Typed reading of one field of a config; knows no model and no spec."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any, Final

from core.errors import ModelError

MAX_COUNT: Final = 1 << 24
"""Upper bound of every other count; a larger number is a corrupt file."""


class ConfigFields:
    """The fields of one config, typed."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or `default` if it is absent (null counts as present)."""
        return getattr(self._config, name, default)

    def required(self, name: str) -> Any:
        """Return a field. Raises `ModelError` if it is absent or null."""
        value = self.get(name)
        if value is None:
            raise ModelError(
                f"config.json has no {name!r}; restore the model's own file or set it with "
                "--hf-overrides."
            )
        return value

    def refuse(self, name: str) -> None:
        """Raise `ModelError` if an unsupported switch is on."""
        if self.get(name):
            raise ModelError(
                f"{name} is on in config.json, which this architecture does not serve yet."
            )

    def choice(self, name: str, default: str, known: Collection[str]) -> str:
        """Return a field that is one of the known names; `default` where it is absent."""
        value = self.get(name, default)
        if value not in known:
            raise ModelError(
                f"{name} in config.json: got {value!r:.100}; expected {', '.join(known)}. Restore "
                "the model's own config.json."
            )
        return str(value)

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer field of at least `least`; `default` where it is absent or null."""
        value = self._given(name, default)
        if type(value) is not int or value < least:
            expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
            raise ModelError(f"{name} in config.json is {value!r:.100}; it must be {expected}.")
        if value > MAX_COUNT:
            raise ModelError(
                f"{name} in config.json is {value!r:.100}; no model has more than {MAX_COUNT}."
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number field; `default` where it is absent or null."""
        return positive(name, self._given(name, default))

    def negative(self, name: str, default: float) -> float:
        """Return a negative number field; `default` where it is absent or null."""
        value = self._given(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value < 0:
            raise ModelError(f"{name} in config.json is {value!r:.100}; it must be negative.")
        return float(value)

    def number_or_none(self, name: str, default: float | None = None) -> float | None:
        """Return a positive number field; None if it is null, `default` if it is absent."""
        value = self.get(name, default)
        return None if value is None else positive(name, value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a field that is a list of positive numbers."""
        return tuple(positive(name, value) for value in items_of(name, self.required(name)))

    def indices(self, name: str) -> frozenset[int]:
        """Return a list of integers; empty if the field is absent or null."""
        values = items_of(name, self._given(name, []))
        if any(type(value) is not int for value in values):
            raise ModelError(
                f"{name} in config.json is {values!r:.100}; it must be a list of integers."
            )
        return frozenset(values)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a switch; `default` where it is absent or null."""
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{name} in config.json is {value!r:.100}; it must be true or false.")
        return value

    def _given(self, name: str, default: Any) -> Any:
        """Return a field, or `default` if it is absent or null; without a default it is
        required.
        """
        value = self.get(name)
        if value is not None:
            return value
        return self.required(name) if default is None else default

    def _object(self, name: str) -> Mapping[str, Any]:
        value = self.get(name) or {}
        if not isinstance(value, Mapping):
            raise ModelError(
                f"{name} in config.json is {value!r:.100}; it must be an object, or null."
            )
        return value


def positive(name: str, value: Any) -> float:
    """Return a number above 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise ModelError(f"{name} in config.json is {value!r:.100}; it must be a positive number.")
    return float(value)


def items_of(name: str, value: Any) -> list[Any]:
    """Return the items of a list."""
    if not isinstance(value, (list, tuple)):
        raise ModelError(f"{name} in config.json is {value!r:.100}; it must be a list.")
    return list(value)
