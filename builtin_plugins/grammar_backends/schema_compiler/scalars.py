"""Keywords of numbers and strings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from builtin_plugins.grammar_backends.languages.decimals import (
    Relation,
    compared,
    exact,
    multiples,
    others,
)
from builtin_plugins.grammar_backends.languages.dfa import Dfa
from builtin_plugins.grammar_backends.languages.formats import (
    MAX_LENGTHS,
    UNSERVED_FORMATS,
    format_patterns,
)
from builtin_plugins.grammar_backends.languages.regex_parser import RegexError
from builtin_plugins.grammar_backends.schema_compiler.document import UnsupportedSchemaError
from builtin_plugins.grammar_backends.schema_compiler.facts import Language, Numbers, Strings

UNBOUNDED: Final = 100_000
"""Lengths and counts from which a maximum is none, and a minimum is refused."""


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def count(schema: Mapping[str, Any], keyword: str, path: str) -> int | None:
    """Return a keyword's natural number, which may be written as 1.0; None without it.

    Also None for a maximum beyond `UNBOUNDED`, which no output reaches.
    """
    if keyword not in schema:
        return None
    value = schema[keyword]
    if not is_number(value) or not 0 <= value < float("inf") or value != int(value):
        raise UnsupportedSchemaError(keyword, f"must be a number >= 0, not {value!r:.60}", path)
    if value < UNBOUNDED:
        return int(value)
    if keyword.startswith("max"):
        return None
    raise UnsupportedSchemaError(keyword, f"is not less than {UNBOUNDED}", path)


def numbers(schema: Mapping[str, Any], draft: int, path: str) -> list[Numbers]:
    """Return each constraint on numbers."""
    found: list[Dfa] = []
    for keyword, relation in _bounds(schema, draft):
        value = schema[keyword.removeprefix("!")]
        keyword = keyword.removeprefix("!")
        if not is_number(value):
            raise UnsupportedSchemaError(keyword, f"must be a number, not {value!r:.60}", path)
        bound = compared(relation, exact(value)) if abs(value) < float("inf") else None
        if bound is None:
            raise UnsupportedSchemaError(keyword, "has over 400 digits", path)
        found.append(bound)
    if "multipleOf" in schema:
        value = schema["multipleOf"]
        if not is_number(value) or not 0 < value < float("inf"):
            raise UnsupportedSchemaError(
                "multipleOf", f"must be a number > 0, not {value!r:.60}", path
            )
        dfa = multiples(exact(value))
        if dfa is None:
            raise UnsupportedSchemaError("multipleOf", "has too many remainders", path)
        found.append(dfa)
    return [Numbers(dfa) for dfa in found]


def _bounds(schema: Mapping[str, Any], draft: int) -> list[tuple[str, Relation]]:
    found: list[tuple[str, Relation]] = []
    if "minimum" in schema:
        strict = schema.get("exclusiveMinimum") is True and draft <= 4
        found.append(("minimum", ">" if strict else ">="))
    if "maximum" in schema:
        strict = schema.get("exclusiveMaximum") is True and draft <= 4
        found.append(("maximum", "<" if strict else "<="))
    if draft > 4:
        found += [("exclusiveMinimum", ">")] if "exclusiveMinimum" in schema else []
        found += [("exclusiveMaximum", "<")] if "exclusiveMaximum" in schema else []
    return found


def opposite(number: Numbers) -> Numbers | None:
    """Return the numbers that do not fit a constraint."""
    if number.dfa is None:
        return None
    rest = others(number.dfa)
    return None if rest.is_empty() else Numbers(rest)


@lru_cache(maxsize=1024)
def language(regex: str, *, whole: bool = False) -> Language:
    """Return the language of a regex. Raises `RegexError`."""
    return Language(regex, whole=whole)


def pattern(regex: Any, keyword: str, path: str) -> Language:
    """Return the texts in which a pattern matches. Raises `UnsupportedSchemaError`."""
    if not isinstance(regex, str):
        raise UnsupportedSchemaError(keyword, f"must be a regex, not {regex!r:.60}", path)
    try:
        return language(regex)
    except RegexError as error:
        raise UnsupportedSchemaError(keyword, str(error), path) from error


def strings(schema: Mapping[str, Any], path: str) -> tuple[list[Strings], list[Strings]]:
    """Return each constraint on strings, and its opposite."""
    found = []
    opposites = []
    low = count(schema, "minLength", path)
    high = count(schema, "maxLength", path)
    if low:
        found.append(Strings(low=low))
        opposites.append(Strings(high=low - 1))
    if high is not None:
        found.append(Strings(high=high))
        opposites.append(Strings(low=high + 1))
    if "pattern" in schema:
        regex = pattern(schema["pattern"], "pattern", path)
        found.append(Strings(within=(regex,)))
        opposites.append(Strings(outside=(regex,)))
    name = schema.get("format")
    if name in UNSERVED_FORMATS:
        raise UnsupportedSchemaError("format", f"{name!r} cannot be enforced", path)
    if isinstance(name, str) and (text := format_patterns().get(name)) is not None:
        form = language(text, whole=True)
        longest = MAX_LENGTHS.get(name)
        found.append(Strings(within=(form,), high=longest))
        opposites.append(Strings(outside=(form,)))
        if longest is not None:
            opposites.append(Strings(low=longest + 1))
    return found, opposites
