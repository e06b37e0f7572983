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
        return msgspec.json.encode(counts(self._kv))


def counts(kv: Any) -> dict[str, int]:
    """Return how many blocks are held, by nobody but found again until they are taken, and neither.

    Takes time that grows with the number of blocks: some milliseconds for a million.
    """
    used = cached = idle = 0
    for index, pool in enumerate(kv.pools):
        refs = pool.refs
        used += len(refs) - refs.count(0)
        idle += pool.num_free
        groups = (i for i, group in enumerate(kv.layout.groups) if group.pool == index)
        cached += sum(not refs[block] for group in groups for block in pool.find(group).values())
    return {"used": used, "cached": cached, "free": idle - cached}
