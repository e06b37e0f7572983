"""The scheduler half of the playground: tells how many KV blocks are used, cached and free, and
what plugins have raised in
the engine's process. Changes nothing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core.api import InvalidRequest, Registry
from core.contracts.faults import faults_of

NAME: Final = "playground"


class Blocks:
    """Counts blocks when it is asked."""

    name = NAME

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def attach(self, scheduler: Any) -> None:
        """Remember whose blocks."""
        self._kv = scheduler.kv

    def call(self, verb: str, data: bytes) -> bytes:
        """Answer `playground.blocks` with counts by state, and faults by plugin, as JSON."""
        if verb != "blocks":
            raise InvalidRequest("name", f"{NAME} knows blocks, not {verb!r}.")
        return msgspec.json.encode(
            {"blocks": counts(self._kv), "faults": faults_of(self._registry)}
        )


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
