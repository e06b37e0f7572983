"""Limits of request fields, declared in their annotations, and the checks built from them."""

from __future__ import annotations

import math
import reprlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import InvalidRequest

MAX_N = 64
"""Maximum number of sequences per request, which bounds the cost of one request."""
MAX_INT = 2**31 - 1
"""Upper bound of counts; larger ones are mistakes and would overflow on devices."""
MAX_STOP = 64
MAX_BAD_WORDS = 128
MAX_LISTED_TOKENS = 100_000
MAX_ITEM_CHARS = 1024
"""Maximum length of a stop string or bad word, each of which is searched after every token."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits and description of one request field."""

    doc: str
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    """True: `low` itself is excluded."""
    max_items: int | None = None


class _Check(typing.Protocol):
    def __call__(self, name: str, value: Any) -> None: ...


def _number_check(bound: Bound, integer: bool, optional: bool) -> _Check:
    expected = "an integer" if integer else "a finite number"

    def check(name: str, value: Any) -> None:
        if value is None and optional:
            return
        good = isinstance(value, int) if integer else isinstance(value, (int, float))
        if not good or isinstance(value, bool) or not math.isfinite(value):
            raise InvalidRequest(name, f"must be {expected}, not {reprlib.repr(value)}.")
        low = bound.low
        high = bound.high
        if low is not None and (value <= low if bound.low_open else value < low):
            relation = "greater than" if bound.low_open else "at least"
            raise InvalidRequest(name, f"must be {relation} {low}, not {value}.")
        if high is not None and value > high:
            raise InvalidRequest(name, f"must be at most {high}, not {value}.")

    return check


def _items_check(bound: Bound, item: type, optional: bool) -> _Check:
    check_item = _number_check(bound, integer=True, optional=False)

    def check(name: str, value: Any) -> None:
        if value is None and optional:
            return
        if not isinstance(value, (list, tuple)):
            raise InvalidRequest(name, f"must be a list, not {reprlib.repr(value)}.")
        if bound.max_items is not None and len(value) > bound.max_items:
            raise InvalidRequest(
                name, f"holds {len(value)} items, at most {bound.max_items} are allowed."
            )
        for element in value:
            if item is int:
                check_item(name, element)
            elif not isinstance(element, str):
                raise InvalidRequest(name, f"must hold texts, not {reprlib.repr(element)}.")
            elif len(element) > MAX_ITEM_CHARS:
                raise InvalidRequest(
                    name, f"holds {len(element)} characters in one text, at most {MAX_ITEM_CHARS}."
                )

    return check


def _bias_check(bound: Bound) -> _Check:
    check_value = _number_check(bound, integer=False, optional=False)

    def check(name: str, value: Any) -> None:
        if value is None:
            return
        if not isinstance(value, Mapping):
            raise InvalidRequest(name, f"must map token ids to numbers, not {reprlib.repr(value)}.")
        if bound.max_items is not None and len(value) > bound.max_items:
            raise InvalidRequest(
                name, f"holds {len(value)} items, at most {bound.max_items} are allowed."
            )
        for token, number in value.items():
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise InvalidRequest(name, f"token ids must be integers from 0, not {token!r:.80}.")
            check_value(name, number)

    return check


def _flag_check(optional: bool) -> _Check:
    def check(name: str, value: Any) -> None:
        if not (isinstance(value, bool) or (value is None and optional)):
            raise InvalidRequest(name, f"must be true or false, not {reprlib.repr(value)}.")

    return check


def make_checks(catalogue: type) -> tuple[tuple[str, _Check], ...]:
    """Return (name, check) for each annotated field of a struct of request parameters."""
    checks: list[tuple[str, _Check]] = []
    for name, hint in typing.get_type_hints(catalogue, include_extras=True).items():
        bound = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Bound)), None)
        if bound is None:
            continue
        inner = typing.get_args(hint)[0]
        parts = [inner]
        if type(None) in typing.get_args(inner):
            parts = [a for a in typing.get_args(inner) if a is not type(None)]
        kind = parts[0]
        optional = len(parts) < len(typing.get_args(inner) or (inner,))
        origin = typing.get_origin(kind)
        if kind is bool:
            checks.append((name, _flag_check(optional)))
        elif kind in (int, float):
            checks.append((name, _number_check(bound, kind is int, optional)))
        elif origin is list:
            checks.append((name, _items_check(bound, typing.get_args(kind)[0], optional)))
        else:
            checks.append((name, _bias_check(bound)))
    return tuple(checks)
