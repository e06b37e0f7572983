"""Limits how many values a JSON body holds, and measures them once they are decoded. Counting can
be interrupted; parsing cannot.

Commas, colons and brackets outside of strings give the number of values, names, lists and objects.
The count yields to the event loop after every few thousand characters.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from sys import getsizeof
from typing import Any, Final, NamedTuple

from core.api import InvalidRequest

LARGE_BYTES: Final = 100_000
"""Body size in bytes up to which no count is needed: such bodies parse quickly."""
SLICE_SIGNS: Final = 1024
"""Characters counted before the event loop runs again."""
PAUSE_S: Final = 0.001
"""Pause after each slice, in seconds. Without a wait, the thread that delivers tokens starves."""
SLICE_TEXT: Final = 2**16
"""Length of a string, in bytes, after which the event loop runs again."""
SLICE_BYTES: Final = 2**18
"""Bytes of a body counted at once by the quick check."""
_PART: Final = rb'(?:[^"\\]{1,64}+|\\.){0,4096}+("?)'
"""Part of a string, up to its end or to 256 kB."""
_SIGNS: Final = re.compile(rb'"' + _PART + rb"|[,:{\[]", re.DOTALL)
_REST_OF_STRING: Final = re.compile(_PART, re.DOTALL)


class SizeLimit(NamedTuple):
    """Maximum number of one kind of JSON value."""

    signs: bytes
    """Characters that each stand for one value of the kind."""
    maximum: int
    what: str
    """The kind in words, for the error message."""


VALUES: Final = 2**17
"""Largest number of values; with as many names and lists as allowed, parsing takes 5 ms."""
LIMITS: Final = (
    SizeLimit(b",", VALUES, "values"),
    SizeLimit(b":", 2**15, "names"),
    SizeLimit(b"[{", 2**15, "lists and objects"),
)


def limits_for(num_tokens: int) -> Sequence[SizeLimit]:
    """Return the limits of bodies that may hold this many token ids."""
    return (LIMITS[0]._replace(maximum=max(VALUES, num_tokens)), *LIMITS[1:])


async def check_json_size(body: bytes, limits: Sequence[SizeLimit] = LIMITS) -> None:
    """Raise `InvalidRequest` if a body exceeds a limit. Yields to the event loop while counting."""
    if len(body) <= LARGE_BYTES or not await _may_exceed(body, limits):
        return
    counts = dict.fromkeys(limits, 0)
    limit_of = {sign: limit for limit in limits for sign in limit.signs}
    position = 0
    number = 0
    pattern = _SIGNS
    while (found := pattern.search(body, position)) is not None:
        start = position
        position = found.end()
        in_string = pattern is _REST_OF_STRING or found.group(1) is not None
        limit = None if in_string else limit_of.get(body[found.start()])
        if limit is not None:
            counts[limit] += 1
            if counts[limit] >= limit.maximum:
                raise InvalidRequest(
                    "body",
                    f"holds more than {limit.maximum} {limit.what}; send less in one request.",
                )
        elif pattern is _REST_OF_STRING and position == start:
            return  # an unterminated string; the parser reports it
        pattern = _REST_OF_STRING if in_string and not found.group(1) else _SIGNS
        number += 1
        if number % SLICE_SIGNS == 0 or position - start > SLICE_TEXT:
            await asyncio.sleep(PAUSE_S)


def decoded_bytes(value: Any) -> int:
    """Return the memory that a decoded JSON value takes, which may be thirty times its text.

    Lists and objects count twice: the form in which a request is prepared has own ones.
    """
    size = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            size += 2 * getsizeof(item)
            pending += item
            pending += item.values()
        elif isinstance(item, list):
            size += 2 * getsizeof(item)
            pending += item
        else:
            size += getsizeof(item)
    return size


async def _may_exceed(body: bytes, limits: Sequence[SizeLimit]) -> bool:
    """Return whether a limit is exceeded when strings are counted too.

    The check is quick, and sufficient for almost every body.
    """
    view = memoryview(body)
    counts = dict.fromkeys(limits, 0)
    for start in range(0, len(body), SLICE_BYTES):
        part = bytes(view[start : start + SLICE_BYTES])
        for limit in limits:
            counts[limit] += sum(part.count(sign) for sign in limit.signs)
        await asyncio.sleep(PAUSE_S)
    return any(counts[limit] >= limit.maximum for limit in limits)
