"""How much a JSON body holds, counted before it is parsed: a parser cannot be interrupted, counting
can.

Commas, colons and brackets outside of texts say how many values, names, lists and objects there
will be. Bodies of which the parser would make too many are refused here, a few thousand signs at a
time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from core.api import InvalidRequest

LARGE_BYTES: Final = 100_000
"""Smaller bodies are parsed in a moment, whatever they hold."""
SLICE_SIGNS: Final = 1024
"""Counted between two looks at everything else."""
PAUSE_S: Final = 0.001
"""A loop that never waits hardly lets another thread have the interpreter, and tokens come by such
a thread.
"""
SLICE_TEXT: Final = 2**16
SLICE_BYTES: Final = 2**18
_PART: Final = rb'(?:[^"\\]{1,64}+|\\.){0,4096}+("?)'
"""Of a text, up to its end or to 256 kB."""
_SIGNS: Final = re.compile(rb'"' + _PART + rb"|[,:{\[]", re.DOTALL)
_MORE: Final = re.compile(_PART, re.DOTALL)


class Most(NamedTuple):
    """How many there may be of what some signs stand for."""

    signs: bytes
    most: int
    what: str


VALUES: Final = 2**17
"""Together with as many names and lists as may be, what a parser makes in some 5 ms."""
LIMITS: Final = (
    Most(b",", VALUES, "values"),
    Most(b":", 2**15, "names"),
    Most(b"[{", 2**15, "lists and objects"),
)


def limits_for(num_tokens: int) -> Sequence[Most]:
    """Return the limits for bodies that may hold so many token ids."""
    return (LIMITS[0]._replace(most=max(VALUES, num_tokens)), *LIMITS[1:])


async def refuse_crowded(body: bytes, limits: Sequence[Most] = LIMITS) -> None:
    """Raise `InvalidRequest` for a body of more values, names, lists or objects than may be; others
    go on meanwhile.
    """
    if len(body) <= LARGE_BYTES or not await _looks_crowded(body, limits):
        return
    counts = dict.fromkeys(limits, 0)
    limit_of = {sign: limit for limit in limits for sign in limit.signs}
    place = 0
    number = 0
    pattern = _SIGNS
    while (found := pattern.search(body, place)) is not None:
        begun = place
        place = found.end()
        is_text = pattern is _MORE or found.group(1) is not None
        limit = None if is_text else limit_of.get(body[found.start()])
        if limit is not None:
            counts[limit] += 1
            if counts[limit] >= limit.most:
                raise InvalidRequest(
                    "body", f"holds more than {limit.most} {limit.what}; send less in one request."
                )
        elif pattern is _MORE and place == begun:
            return  # a text without an end, which the parser will tell of
        pattern = _MORE if is_text and not found.group(1) else _SIGNS
        number += 1
        if number % SLICE_SIGNS == 0 or place - begun > SLICE_TEXT:
            await asyncio.sleep(PAUSE_S)


async def _looks_crowded(body: bytes, limits: Sequence[Most]) -> bool:
    """Count what texts hold, too: quick, and enough for almost every body."""
    view = memoryview(body)
    counts = dict.fromkeys(limits, 0)
    for start in range(0, len(body), SLICE_BYTES):
        part = bytes(view[start : start + SLICE_BYTES])
        for limit in limits:
            counts[limit] += sum(part.count(sign) for sign in limit.signs)
        await asyncio.sleep(PAUSE_S)
    return any(counts[limit] >= limit.most for limit in limits)
