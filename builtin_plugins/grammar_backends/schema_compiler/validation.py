"""Checks a value against a whole JSON schema, within a limit of time.

The library evaluates the keywords. Regexes and formats are those of the compiler, because a
client's regex can take Python's own engine for ever.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, wraps
from itertools import islice
from typing import Any, Final

import jsonschema
import referencing
from jsonschema import FormatChecker, ValidationError
from jsonschema.exceptions import FormatError

from builtin_plugins.grammar_backends.languages.formats import (
    MAX_LENGTHS,
    UNSERVED_FORMATS,
    format_patterns,
)
from builtin_plugins.grammar_backends.schema_compiler.document import Document, UncheckedError
from builtin_plugins.grammar_backends.schema_compiler.scalars import language

MAX_CHARACTERS: Final = 65_536
"""Largest schema and largest value to check, as JSON."""
_MAX_CPU_S: Final = 0.1
_MAX_BROKEN: Final = 20
_VALIDATORS: Final[Mapping[int, Any]] = {
    3: jsonschema.Draft3Validator,
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}
Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


def find_broken(schema: Mapping[str, Any], value: str) -> list[str]:
    """Return the paths of the keywords that a JSON text does not follow.

    Takes about a tenth of a second of CPU time at most. Raises `UncheckedError`.
    """
    rest = {name: part for name, part in schema.items() if name != "$schema"}
    try:
        written = json.dumps(rest)
        if max(len(written), len(value)) > MAX_CHARACTERS:
            raise UncheckedError("is too large")
        if '"$schema"' in written or (
            '"unevaluatedProperties"' in written and '"patternProperties"' in written
        ):
            raise UncheckedError("has keywords that the library does not evaluate by our rules")
        validator = _validator(Document(schema).draft)(
            rest, registry=referencing.Registry(), format_checker=_Checks()
        )
        errors = islice(validator.iter_errors(json.loads(value)), _MAX_BROKEN)
        found = [".".join(map(str, error.absolute_schema_path)) for error in errors]
    except UncheckedError:
        raise
    except Exception as error:  # whatever a library raises for a client's odd schema
        raise UncheckedError(str(error)) from error
    return [*dict.fromkeys(found)]


class _Checks(FormatChecker):
    """Formats, regexes and the limit of time of one check; each validator of it has this."""

    def __init__(self) -> None:
        super().__init__(formats=())
        self._end_s = time.thread_time() + _MAX_CPU_S

    def count(self) -> None:
        """Raise `UncheckedError` when the time is over."""
        if time.thread_time() > self._end_s:
            raise UncheckedError("takes too long")

    def check(self, instance: object, format: str) -> None:
        """Raise `FormatError` if a text does not have a format."""
        if not isinstance(instance, str):
            return
        if format in UNSERVED_FORMATS:
            raise UncheckedError(f"{format!r:.60} cannot be checked")
        regex = format_patterns().get(format)
        if regex is None:
            return
        too_long = len(instance) > MAX_LENGTHS.get(format, MAX_CHARACTERS)
        if too_long or not language(regex, whole=True).dfa.matches(instance):
            raise FormatError(f"{instance!r:.60} is no {format}")


def _matches(validator: Any, regex: str, text: str) -> bool:
    validator.format_checker.count()
    return language(regex).dfa.matches(text)


@lru_cache(maxsize=len(_VALIDATORS))
def _validator(draft: int) -> Any:
    """Return the validator of a draft; its keywords count the time."""
    base = _VALIDATORS[draft]
    keywords = {**base.VALIDATORS, **{k: f for k, f in _OWN.items() if k in base.VALIDATORS}}
    return jsonschema.validators.extend(  # type: ignore[no-untyped-call]
        base, {name: _counting(keyword) for name, keyword in keywords.items()}
    )


def _counting(keyword: Keyword) -> Keyword:
    @wraps(keyword)
    def counted(
        validator: Any, stated: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError] | None:
        validator.format_checker.count()
        return keyword(validator, stated, instance, schema)

    return counted


def _pattern(validator: Any, stated: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(validator, stated, instance):
        yield ValidationError("does not match")


def _pattern_properties(
    validator: Any, stated: Any, instance: Any, _: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for regex, part in stated.items():
        for name, value in instance.items():
            if _matches(validator, regex, name):
                yield from validator.descend(value, part, path=name, schema_path=regex)


def _additional_properties(
    validator: Any, stated: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    named = schema.get("properties", {})
    regexes = schema.get("patternProperties", {})
    for name, value in instance.items():
        if name not in named and not any(_matches(validator, each, name) for each in regexes):
            yield from validator.descend(value, stated, path=name)


def _unique_items(validator: Any, stated: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if stated and isinstance(instance, list):
        seen = {_hashable(value) for value in instance}
        if len(seen) < len(instance):
            yield ValidationError("has equal items")


def _hashable(value: Any) -> object:
    """Return what is equal for equal JSON values: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return frozenset((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(_hashable(each) for each in value)
    return (type(value) is bool, value)


_OWN: Final[Mapping[str, Keyword]] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
