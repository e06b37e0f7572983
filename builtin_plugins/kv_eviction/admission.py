"""`kv_retention`: what a request says of the blocks that it leaves in the cache.

The half at the edge.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import msgspec

from core.api import Draft, InvalidRequest, Retention

NAME: Final = "kv_eviction"
FIELD: Final = "kv_retention"
MOST_PRIORITY: Final = 100
MOST_S: Final = 86_400.0
_PLACE: Final = re.compile(r" - at `\$\.?(.*?)`$")


class Admission:
    """Reads the field, and hands it on."""

    keywords = (FIELD,)
    fields = (FIELD,)

    def __init__(self, ignored_with: str = "") -> None:
        """`ignored_with`: the flag with which nobody heeds it; empty: it is heeded."""
        self._ignored_with = ignored_with

    async def prepare(self, draft: Draft) -> Draft:
        """Check it. Raises `InvalidRequest` naming what is wrong."""
        said = read(draft.given[FIELD])
        if self._ignored_with:
            raise InvalidRequest(
                FIELD, f"is heeded by nobody with {self._ignored_with}; leave it out."
            )
        return replace(draft, features={**draft.features, NAME: msgspec.msgpack.encode(said)})


def read(given: Any) -> Retention:
    """Return what is said. Raises `InvalidRequest` naming what is wrong with it."""
    try:
        said = msgspec.convert(given, Retention)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        name = f"{FIELD}.{place.group(1)}" if place and place.group(1) else FIELD
        raise InvalidRequest(name, f"{_PLACE.sub('', str(error))}.") from error
    for name, value, most in (
        ("priority", said.priority, MOST_PRIORITY),
        ("duration_s", said.duration_s, MOST_S),
    ):
        if not 0 <= value <= most:
            raise InvalidRequest(f"{FIELD}.{name}", f"must be from 0 to {most:g}, not {value!r}.")
    if said.first_tokens is not None and not 0 < said.first_tokens < 1 << 31:
        raise InvalidRequest(
            f"{FIELD}.first_tokens", f"must be 1 or more, not {said.first_tokens!r}."
        )
    return said
