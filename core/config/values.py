"""Typing rules: the values that an annotation accepts, and the conversion of
text.

Text has one meaning on the command line, in files and as keywords: "None" and "" are
None where None is allowed; numbers and JSON are parsed; 1k is 1000 and 1K is 1024 for
sizes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Union

from core.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class HumanSize:
    """Marks an int that text may write with a suffix; with `auto` also "auto"
    for -1.
    """

    auto: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """Marks a number with inclusive bounds: `Annotated[int, Range(0,
    65535)]`.
    """

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class AllowEmpty:
    """Marks text that may be empty or blank: `Annotated[str,
    AllowEmpty()]`.
    """


Size = Annotated[int, HumanSize()]
"""An int that may be written as 1k (1000), 1K (1024), 25.6k, 2M."""

ContextSize = Annotated[int, HumanSize(auto=True)]
"""A `Size` that may also be "auto", which is -1."""

_DEFAULT_RANGES: Final = {int: Range(-(2**63), 2**63 - 1), float: Range(-1e300, 1e300)}
"""Default bounds: 64 bits for integers, finite for floats."""
_POWERS: Final[Mapping[str, int]] = {"k": 1, "m": 2, "g": 3, "t": 4}
_INTEGER: Final = re.compile(r"[+-]?\d{1,40}")
_HUMAN_SIZE: Final = re.compile(r"(\d{1,40}(?:\.\d{1,40})?)([kKmMgGtT])")
_TYPE_NAMES: Final = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


class BadValue(ValueError):
    """A value that its annotation does not allow; the message has the
    expectation.
    """


@dataclass(slots=True)
class ValueType:
    """A parsed annotation: a union of everything that is set here."""

    scalars: tuple[type, ...] = ()
    choices: tuple[str | int, ...] = ()
    items: ValueType | None = None
    length: int | None = None
    """Number of items of a fixed tuple."""
    mapping: bool = False
    optional: bool = False
    human: HumanSize | None = None
    within: Range | None = None
    blank: bool = False

    @classmethod
    def of(cls, hint: Any, name: str) -> ValueType:
        """Return a parsed annotation. Raises `ConfigError` for one that no flag can express."""
        found = cls()
        found._add(hint, hint, name)
        return found

    def _add(self, hint: Any, whole: Any, name: str) -> None:
        origin = typing.get_origin(hint)
        args = typing.get_args(hint)
        if hint is type(None):
            self.optional = True
        elif hint in _TYPE_NAMES:
            self.scalars += (hint,)
        elif origin is Annotated:
            self._add(args[0], whole, name)
            self.human = next((m for m in args[1:] if isinstance(m, HumanSize)), self.human)
            self.within = next((m for m in args[1:] if isinstance(m, Range)), self.within)
            self.blank = self.blank or any(isinstance(m, AllowEmpty) for m in args[1:])
        elif origin in (Union, types.UnionType):
            for arg in args:
                self._add(arg, whole, name)
        elif origin is Literal:
            self.choices += tuple(sorted(args, key=str))
        elif hint is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
            self.mapping = True
        elif hint is list or origin in (list, tuple):
            self.items = ValueType.of(args[0] if args else str, name)
            self.length = len(args) if origin is tuple and Ellipsis not in args else None
        else:
            raise ConfigError(f"Unsupported type {whole} for argument {name}.")

    @property
    def expected(self) -> str:
        """Description of the accepted values."""
        parts = []
        if self.choices:
            parts.append(f"one of {', '.join(map(str, self.choices))}")
        for scalar in self.scalars:
            suffixes = " (1k, 25.6k, 1K=1024)" if scalar is int and self.human else ""
            parts.append(_TYPE_NAMES[scalar] + suffixes)
        if self.mapping:
            parts.append("a JSON object")
        if self.items is not None:
            count = f"{self.length} times " if self.length else "a list of: "
            parts.append(count + self.items.expected)
        return " or ".join(parts)

    def convert(self, value: Any) -> Any:
        """Return the value converted to the annotation. Raises `BadValue`."""
        none = ("", "None") if self.items is None else ("None",)
        if self.optional and (value is None or (isinstance(value, str) and value in none)):
            return None
        if isinstance(value, type) and str in self.scalars:
            return f"{value.__module__}:{value.__qualname__}"
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(value, (list, tuple)) and self.items is not None:
            return self._list(list(value))
        return self._text(value) if isinstance(value, str) else self._object(value)

    def fault(self, value: Any) -> str:
        """Return the error of a value of this type: bounds or unusable text; empty: valid."""
        if self.items is not None and isinstance(value, (list, tuple)):
            return next(filter(None, map(self.items.fault, value)), "")
        if isinstance(value, str) and value not in self.choices:
            text = value if self.blank else value.strip()
            if not text:
                return "is empty, or holds an empty text; give one, or leave it out."
            return "holds a NUL character; no file and no name can." if "\0" in value else ""
        bounds = self.within or _DEFAULT_RANGES.get(type(value))
        if bounds is None or type(value) not in _DEFAULT_RANGES:
            return ""
        if bounds.low <= value <= bounds.high:
            return ""
        if value < bounds.low:
            return f"{value} is too small; use at least {bounds.low}."
        if value > bounds.high:
            return f"{value} is too large; use up to {bounds.high}."
        return f"{value} is no number."

    def _list(self, values: list[Any]) -> list[Any] | tuple[Any, ...]:
        assert self.items is not None
        if len(values) == 1 and isinstance(values[0], str) and values[0].startswith("["):
            with contextlib.suppress(ValueError, RecursionError):  # vLLM's lists are JSON
                values = json.loads(values[0])
        if self.length is not None and len(values) != self.length:
            raise BadValue(f"expected {self.length} values, not {len(values)}")
        converted = [self.items.convert(value) for value in values]
        return converted if self.length is None else tuple(converted)

    def _text(self, text: str) -> Any:
        for choice in self.choices:
            if text == str(choice):
                return choice
        if int in self.scalars and (number := _integer(text, self.human)) is not None:
            return number
        if float in self.scalars:
            with contextlib.suppress(ValueError):
                return float(text)
        if self.mapping and (str not in self.scalars or text.lstrip().startswith("{")):
            return self._json(text)
        if str in self.scalars:
            return text
        if self.items is not None:
            return self._list([text])
        for choice in self.choices:
            if text.casefold() == str(choice).casefold():  # vLLM's levels of logs are in capitals
                return choice
        raise BadValue(f"expected {self.expected}{did_you_mean(text, map(str, self.choices))}")

    def _json(self, text: str) -> Any:
        try:
            value = json.loads(text)
        # huge numbers raise a plain ValueError
        except (ValueError, RecursionError) as error:
            raise BadValue(
                f"expected {self.expected}, or its keys one by one after a dot; not JSON: {error}"
            ) from error
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if type(value) is int and value in self.choices:
            return value
        if isinstance(value, Mapping) and self.mapping:
            return dict(value)
        for scalar in self.scalars:
            if type(value) is scalar:
                return value
        if type(value) is int and float in self.scalars:
            with contextlib.suppress(OverflowError):
                return float(value)
        raise BadValue(f"expected {self.expected}")


def _integer(text: str, human: HumanSize | None) -> int | None:
    """Return the integer in a text; None if there is none."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if human is not None and human.auto and text == "auto":
        return -1
    match = _HUMAN_SIZE.fullmatch(text)
    if human is None or match is None:
        return None
    number, suffix = match.groups()
    power = _POWERS[suffix.lower()]
    if suffix.islower():
        value = Decimal(number) * Decimal(1000) ** power
        if value != int(value):
            raise BadValue(f"{text} is not a whole number")
        return int(value)
    if "." in number:
        raise BadValue(
            f"Decimals are not allowed with binary suffixes like {suffix}. "
            f"Did you mean to use {number}{suffix.lower()} instead?"
        )
    return int(number) * int(1024**power)
