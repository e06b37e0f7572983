"""Limits of the values that a template makes: checked before a call multiplies a text, and after.

A template stops at its time limit only between two operations, so no single one may take long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Final

from jinja2.exceptions import SecurityError

MAX_CHARS: Final = 1 << 25
"""Character limit of a prompt and of a text in a template; above any request limit."""
MAX_ITEMS: Final = 1 << 20
"""Item limit of a list in a template."""
MAX_DATE_CHARS: Final = 200
"""Length limit of a date format."""
MAX_INDENT: Final = 64
"""Limit of the spaces of one level in JSON."""
UNSERVED_FILTERS: Final = ("urlize", "wordwrap", "striptags", "xmlattr", "pprint", "random")
"""Filters for web pages, which take work out of proportion to their text."""
_WIDE: Final = re.compile(r"[%:][^A-Za-z]{0,16}?\d{7}")
"""A field with a width of a million or more."""
_MAX_WIDTH: Final = 10**6


def limited(filter_name: str, function: Callable[..., Any], spend: Callable[[Any], Any]) -> Any:
    """Return a filter with checked arguments; `spend` counts and returns its result."""

    @wraps(function)  # with Jinja's marks of filters that take the context
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[1:] if hasattr(function, "jinja_pass_arg") else args
        check_call(filter_name, given[0] if given else None, [*given[1:], *kwargs.values()])
        return spend(function(*args, **kwargs))

    return call


def check_call(name: str, value: Any, arguments: Sequence[Any]) -> None:
    """Raise `SecurityError` for a call that would make too large a value of a text or list."""
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_CHARS:
            raise SecurityError(f"{name} with the number {argument!r:.20} makes too large a value")
    check = _CHECKS.get(name)
    if check is not None and check(value, arguments) > MAX_CHARS:
        raise SecurityError(f"{name} makes a text of more than {MAX_CHARS} characters")


def check_format(text: Any, arguments: Any) -> None:
    """Raise `SecurityError` for a `%` that would make too large a text."""
    if isinstance(text, str):
        values = arguments if isinstance(arguments, tuple) else (arguments,)
        check_call("format", text, values)


def _join_size(value: Any, arguments: Sequence[Any]) -> int:
    """Return the characters of a join, of the method or of the filter."""
    separator = value
    parts = arguments[0] if arguments else ()
    if not isinstance(value, str):
        separator, parts = parts, value
    if not isinstance(parts, (list, tuple, str, range)):
        return 0
    own = sum(len(part) for part in parts if isinstance(part, str))
    return own + len(parts) * (len(separator) if isinstance(separator, str) else 0)


def _replace_size(value: Any, arguments: Sequence[Any]) -> int:
    if len(arguments) < 2 or not isinstance(value, str):
        return 0
    return value.count(str(arguments[0])) * len(str(arguments[1]))


def _format_size(value: Any, arguments: Sequence[Any]) -> int:
    text = str(value)
    takes_width = "*" in text or "}}" in text
    is_wide = any(isinstance(each, int) and each > _MAX_WIDTH for each in arguments)
    if _WIDE.search(text) or (takes_width and is_wide):
        return MAX_CHARS + 1
    fields = text.count("%") + text.count("{")
    longest = max((_length(argument) for argument in arguments), default=0)
    return fields * longest


def _length(value: Any) -> int:
    if isinstance(value, Mapping):
        return max((_length(inner) for inner in value.values()), default=0)
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _columns_size(value: Any, arguments: Sequence[Any]) -> int:
    text = str(value)
    width = max((n for n in arguments if isinstance(n, int)), default=8)
    return (text.count("\t") + text.count("\n") + text.count("\r")) * width


def _refused(value: Any, arguments: Sequence[Any]) -> int:
    return MAX_CHARS + 1


def _sum_size(value: Any, arguments: Sequence[Any]) -> int:
    """Refuse sums of lists, which copy each of them again and again."""
    return MAX_CHARS + 1 if any(isinstance(each, (list, tuple)) for each in arguments) else 0


_CHECKS: Final[Mapping[str, Callable[[Any, Sequence[Any]], int]]] = {
    "join": _join_size,
    "replace": _replace_size,
    "format": _format_size,
    "format_map": _format_size,
    "expandtabs": _columns_size,
    "indent": _columns_size,
    "translate": _refused,
    "sum": _sum_size,
}


def length_of(value: Any) -> int:
    """Return the length of a value. Raises `SecurityError` if it is over the limit."""
    if isinstance(value, str):
        if len(value) > MAX_CHARS:
            raise SecurityError(f"a text has more than {MAX_CHARS} characters")
        return len(value)
    if isinstance(value, (list, tuple, dict)):
        if len(value) > MAX_ITEMS:
            raise SecurityError(f"a list has more than {MAX_ITEMS} items")
        return len(value)
    return 0


def check_sum(left: Any, right: Any) -> None:
    """Raise `SecurityError` for two texts or lists that are too large together."""
    for kind, limit in ((str, MAX_CHARS), ((list, tuple), MAX_ITEMS)):
        if isinstance(left, kind) and isinstance(right, kind) and len(left) + len(right) > limit:
            raise SecurityError("+ makes a value that is too large")


def check_concat(parts: Iterable[Any]) -> None:
    """Raise `SecurityError` for texts that are too long together."""
    if sum(len(part) for part in parts if isinstance(part, str)) > MAX_CHARS:
        raise SecurityError("~ makes a value that is too large")
