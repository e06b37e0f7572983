"""The scheduler half of the playground: tells how many KV blocks are used, cached and free. Changes nothing."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core.api import InvalidRequest

NAME: Final = "playground"


class Blocks:
    """Counts blocks when it is asked."""

    name = NAME

    def attach(self, scheduler: Any) -> None:
        """Remember whose blocks."""
        self._kv = scheduler.kv

    def call(self, verb: str, data: bytes) -> bytes:
        """Answer `playground.blocks` with counts by state, as JSON."""
        if verb != "blocks":
            raise InvalidRequest("name", f"{NAME} knows blocks, not {verb!r}.")
        return msgspec.json.encode(self._kv.count_blocks()._asdict())
