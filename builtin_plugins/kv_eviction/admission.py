"""Admission half: checks `kv_retention`, the priority of the blocks that a request leaves."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import msgspec

from builtin_plugins.kv_eviction.contract import Retention
from core.api import InvalidRequest
from core.api.features import PendingRequest

NAME: Final = "kv_eviction"
FIELD: Final = "kv_retention"
MAX_PRIORITY: Final = 100
MAX_DURATION_S: Final = 86_400.0
_PATH: Final = re.compile(r" - at `\$\.?(.*?)`$")


class Admission:
    """Reads the field and passes it to the scheduler half."""

    keywords = (FIELD,)
    fields = (FIELD,)

    def __init__(self, ignored_with: str = "") -> None:
        """`ignored_with`: flag that disables retention; empty: it is enabled."""
        self._ignored_with = ignored_with

    async def prepare(self, pending: PendingRequest) -> PendingRequest:
        """Check the field. Raises `InvalidRequest` naming what is wrong."""
        retention = read(pending.plugin_fields[FIELD])
        if self._ignored_with:
            raise InvalidRequest(FIELD, f"has no effect with {self._ignored_with}. Remove it.")
        encoded = msgspec.msgpack.encode(retention)
        return replace(pending, features={**pending.features, NAME: encoded})


def read(given: Any) -> Retention:
    """Return the parsed field. Raises `InvalidRequest` naming what is wrong."""
    try:
        retention = msgspec.convert(given, Retention)
    except msgspec.ValidationError as error:
        path = _PATH.search(str(error))
        name = f"{FIELD}.{path.group(1)}" if path and path.group(1) else FIELD
        raise InvalidRequest(name, f"{_PATH.sub('', str(error))}.") from error
    for name, value, limit in (
        ("priority", retention.priority, MAX_PRIORITY),
        ("duration_s", retention.duration_s, MAX_DURATION_S),
    ):
        if not 0 <= value <= limit:
            raise InvalidRequest(f"{FIELD}.{name}", f"must be from 0 to {limit:g}, not {value!r}.")
    first_tokens = retention.first_tokens
    if first_tokens is not None and not 0 < first_tokens < 1 << 31:
        raise InvalidRequest(f"{FIELD}.first_tokens", f"must be 1 or more, not {first_tokens!r}.")
    return retention
