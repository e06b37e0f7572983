"""Where the engine's memory goes: one half in the scheduler's process, one on every rank, asked
when somebody looks.

Neither does anything in a step. Each answers the call `memory.owners` for its process; other
features add to what is said there (`core.contracts.memory`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.metric_sinks.prometheus.system import heap_bytes, resident_bytes, touched_bytes
from core.contracts.faults import faults_of
from core.contracts.infos import infos_of, numbers_of, spreads_of
from core.contracts.memory import memory_of
from core.contracts.times import times_of

if TYPE_CHECKING:
    from core.contracts import Registry
    from core.contracts.scheduling import WorkerParts

NAME: Final = "memory"
INDEX_ENTRY_BYTES: Final = 400
"""Of a block in the lists of its pool and, when it is full, in the index of prefixes: measured, a
little more than it is.
"""


def process_memory(registry: Registry, process: str) -> dict[str, Any]:
    """Return what is known of this process's memory, and what plugins have raised and taken in it,
    as plain data.

    What the allocator holds has no other name.
    """
    used, free = heap_bytes()
    owners = {owner: list(sizes) for owner, sizes in memory_of(registry).bytes_now().items()}
    return {
        "process": process,
        "pid": os.getpid(),
        "resident": resident_bytes(),
        "heap_used": used,
        "heap_free": free,
        "owners": owners,
        "faults": faults_of(registry),
        "seconds": times_of(registry).so_far(),
    }


class SchedulerMemory:
    """Knows the index of prefixes."""

    name = NAME

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def attach(self, scheduler: Any) -> None:
        """Say how large the index is and may become."""
        blocks = sum(pool.num_blocks for pool in scheduler.kv.layout.pools)

        def size() -> int:
            has, most = memory_of(self._registry).owners.get("kv_cache", (lambda: 1, lambda: 1))
            return int(
                blocks * INDEX_ENTRY_BYTES * has() / max(1, most())
            )  # blocks that were used have entries

        memory_of(self._registry).own("prefix_index", size, lambda: blocks * INDEX_ENTRY_BYTES)

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Answer `owners`, and what features beside the scheduler say of themselves."""
        if verb != "owners":
            return None
        infos = {name: dict(say()) for name, say in infos_of(self._registry).items()}
        numbers = {
            name: value
            for count in numbers_of(self._registry).values()
            for name, value in count().items()
        }
        spreads = {
            name: (spread.bounds, spread.counts, spread.sum)
            for spreads in spreads_of(self._registry).values()
            for name, spread in spreads().items()
        }
        said = {"infos": infos, "numbers": numbers, "spreads": spreads}
        return msgspec.json.encode(process_memory(self._registry, "engine") | said)


class WorkerMemory:
    """Knows weights, cache and rows of its rank."""

    name = NAME

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._process = "rank 0"

    def attach(self, parts: WorkerParts) -> None:
        """Say what was allocated, and of the cache how much was used so far: the system gives it
        page by page.
        """
        from core.models.layers.loading import (
            weight_bytes,  # lazy: the scheduler's process may have no torch
        )

        memory = memory_of(self._registry)
        self._process = f"rank {parts.pipeline.rank * parts.group.size + parts.group.rank}"
        weights = weight_bytes(parts.model)
        memory.own("weights", lambda: weights, lambda: weights)
        blocks = list({tensor.data_ptr(): tensor for tensor in parts.memory.values()}.values())
        cache = sum(tensor.nbytes for tensor in blocks)

        def used() -> int:
            if parts.device != "cpu":
                return cache
            return sum(touched_bytes(tensor.data_ptr(), tensor.nbytes) for tensor in blocks)

        memory.own("kv_cache", used, lambda: cache)
        rows = parts.batch.token_ids.nbytes + parts.batch.ends.nbytes
        memory.own("rows", lambda: rows, lambda: rows)

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Answer `owners`."""
        return (
            msgspec.json.encode(process_memory(self._registry, self._process))
            if verb == "owners"
            else None
        )
