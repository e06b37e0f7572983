"""JSON as models write it: text to values and back, with one error for all that can be wrong."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, Final, NoReturn

_BACKSLASH: Final = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')


class Broken(Exception):
    """What was read is not what the format says."""


def read_json(text: str, *, exact: bool = False) -> Any:
    """Return the value of a JSON text, control characters in strings allowed. Raises `Broken` for
    what is none.

    What is no number of JSON's (`NaN`, `1e999`) is its own name, or if `exact` breaks it. A
    backslash that escapes nothing stands for itself, as models write patterns and paths. Of values
    of one name in an object the first counts.
    """
    try:
        return json.loads(
            text,
            strict=False,
            parse_constant=_refuse if exact else str,
            parse_float=_exact if exact else _finite,
            object_pairs_hook=_first_of_each,
        )
    except RecursionError as error:
        raise Broken from error
    except ValueError as error:
        escaped = _BACKSLASH.sub(lambda found: found[0] if found[1] else "\\\\", text)
        if escaped == text:
            raise Broken from error
        return read_json(escaped, exact=exact)


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else found | dict(reversed(pairs))


def _finite(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


def _exact(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def write_json(value: Any) -> str:
    """Return a value as JSON text. Raises `Broken` for what JSON has not."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Broken from error
