"""Structured outputs: a request's constraint, with limits that hold for every backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from core.errors import InvalidRequest

MAX_CHARS: Final = 262_144
"""Maximum size of a schema, grammar, structural tag or list of choices, in characters."""
MAX_REGEX_CHARS: Final = 16_384
MAX_DEPTH: Final = 64
"""Maximum nesting of a schema's JSON, and of brackets in a regex or grammar."""
MAX_CHOICES: Final = 4096
MAX_WHITESPACE_CHARS: Final = 200

ConstraintKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: Final[tuple[ConstraintKind, ...]] = (
    "json",
    "json_object",
    "regex",
    "choice",
    "grammar",
    "structural_tag",
)
"""The kinds of constraints; a request has exactly one."""
_FIELD: Final = "structured_outputs"
_WHITESPACE: Final = re.compile(r"(?:[ \t\n\r\[\]()?*+|]|\\[tnr]|\?:|\{\d{1,4}(?:,\d{0,4})?\})*")
"""Regexes of JSON whitespace consist of these parts."""


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """Constraint of an output; set exactly one of the first six fields. Names as in vLLM.

    Raises `InvalidRequest` naming a field that is invalid, too large or nested too deeply.
    """

    json: str | dict[str, Any] | None = None
    """JSON schema, as text or as an object."""
    regex: str | None = None
    choice: list[str] | None = None
    """List of allowed outputs."""
    grammar: str | None = None
    """EBNF in the backend's dialect with the start rule `root`."""
    json_object: bool | None = None
    """Any JSON object."""
    structural_tag: str | dict[str, Any] | None = None
    """JSON schemas inside given tags, as JSON text or as an object."""
    disable_fallback: bool = False
    """Refuse the constraint if the first backend does not support it, without trying the next."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    skip_reasoning: bool = False
    """Skip optional reasoning: the constraint holds from the first token."""
    backend: str = ""
    """Selected backend; set at admission, not a request field."""

    def __post_init__(self) -> None:
        if self.backend:
            return  # validated at admission
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "nothing is given"
            raise InvalidRequest(_FIELD, f"{what}; give exactly one of {', '.join(KINDS)}.")
        _CHECKS[given[0]](f"{_FIELD}.{given[0]}", getattr(self, given[0]))
        if self.whitespace_pattern is not None:
            _check_whitespace(given[0], self.whitespace_pattern)

    @property
    def kind(self) -> ConstraintKind:
        """The kind of constraint that is set."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))


def _check_json(field: str, value: Any) -> None:
    """Raise `InvalidRequest` for an invalid, too long or too deep JSON object; never recurses."""
    if isinstance(value, str):
        _check_length(field, len(value), MAX_CHARS)
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise InvalidRequest(field, f"is not valid JSON: {error}.") from error
        except RecursionError as error:
            raise InvalidRequest(
                field, f"is nested deeper than {MAX_DEPTH} levels; flatten it."
            ) from error
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, f"must be a JSON object, not {value!r:.80}.")
    size = 0
    open_: list[tuple[Any, int]] = [(value, 1)]
    while open_:
        item, depth = open_.pop()
        size += len(item) if isinstance(item, str) else 1
        if depth > MAX_DEPTH:
            raise InvalidRequest(field, f"is nested deeper than {MAX_DEPTH} levels; flatten it.")
        if isinstance(item, Mapping):
            size += sum(len(name) for name in item if isinstance(name, str))
            open_ += [(inner, depth + 1) for inner in item.values()]
        elif isinstance(item, (list, tuple)):
            open_ += [(inner, depth + 1) for inner in item]
        elif isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise InvalidRequest(field, "holds a number that does not fit 64 bits.")
        _check_length(field, size, MAX_CHARS)


def _check_length(field: str, length: int, limit: int) -> None:
    if length > limit:
        raise InvalidRequest(
            field, f"has {length} characters or more, at most {limit} are allowed."
        )


def _check_text(field: str, value: Any, limit: int) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(field, f"must be a text that is not empty, not {value!r:.80}.")
    _check_length(field, len(value), limit)
    depth = 0
    for character in value:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_DEPTH:
            raise InvalidRequest(
                field, f"has more than {MAX_DEPTH} brackets open at once; flatten it."
            )


def _check_choice(field: str, value: Any) -> None:
    if (
        not isinstance(value, (list, tuple))
        or not value
        or not all(isinstance(c, str) and c for c in value)
    ):
        raise InvalidRequest(field, "must be a list of texts, at least one, none of them empty.")
    if len(value) > MAX_CHOICES:
        raise InvalidRequest(field, f"holds {len(value)} texts, at most {MAX_CHOICES} are allowed.")
    _check_length(field, sum(map(len, value)), MAX_CHARS)


def _check_whitespace(kind: str, pattern: Any) -> None:
    """Raise `InvalidRequest` for whitespace that breaks JSON or that backends do not enforce."""
    field = f"{_FIELD}.whitespace_pattern"
    if kind not in ("json", "json_object", "structural_tag"):
        raise InvalidRequest(field, f"is for JSON, and has no meaning for {kind}; leave it out.")
    plain = (
        isinstance(pattern, str)
        and len(pattern) <= MAX_WHITESPACE_CHARS
        and _WHITESPACE.fullmatch(pattern)
    )
    try:
        may_be_none = bool(plain) and re.fullmatch(pattern, "") is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequest(field, f"is not a regex: {error}.") from error
    if not may_be_none:
        raise InvalidRequest(
            field,
            r"must be a short regex of blanks, \t, \n and \r that also matches no whitespace, "
            r"such as '[ \n]?', "
            f"not {pattern!r:.80}.",
        )


def _check_flag(field: str, value: Any) -> None:
    if value is not True:
        raise InvalidRequest(field, f"must be true, not {value!r:.80}.")


_CHECKS: Final[Mapping[str, Callable[[str, Any], None]]] = {
    "json": _check_json,
    "structural_tag": _check_json,
    "choice": _check_choice,
    "json_object": _check_flag,
    "regex": lambda field, value: _check_text(field, value, MAX_REGEX_CHARS),
    "grammar": lambda field, value: _check_text(field, value, MAX_CHARS),
}
