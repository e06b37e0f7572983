"""Scheduler and worker extensions that report memory and telemetry of their process.

They only answer the call `memory.owners`, and do nothing in a step. Other features add to the
answer through `builtin_plugins.metric_sinks.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.metric_sinks.prometheus.memory import process_memory, touched_bytes
from builtin_plugins.metric_sinks.providers import (
    gauge_providers,
    histogram_providers,
    info_providers,
    memory_owners,
)
from core.api.planning import NULL_BLOCKS

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.execution import WorkerParts

NAME: Final = "memory"
INDEX_ENTRY_BYTES: Final = 400
"""Measured size, rounded up, of a block's entries in its pool and in the prefix cache, in bytes."""


def engine_rank(config: EngineConfig) -> int | None:
    """Return the rank of the engine; None: it is the only one."""
    rank: int | None = config.options.get("data_parallel_rank")
    return rank


class SchedulerMemory:
    """Scheduler extension; it owns the index of the prefix cache."""

    name = NAME

    def __init__(self, registry: Registry, rank: int | None = None) -> None:
        """`rank`: that of the engine if there are several; its process is named by it."""
        self._rank = rank or 0
        self._process = "engine" if rank is None else f"engine {rank}"
        self._registry = registry

    def attach(self, scheduler: Any) -> None:
        """Register the size of the index and its maximum."""
        pools = scheduler.kv.layout.pools
        self._num_blocks = sum(pool.num_blocks - NULL_BLOCKS for pool in pools)
        max_bytes = INDEX_ENTRY_BYTES * sum(pool.num_blocks for pool in pools)
        owners = memory_owners(self._registry)

        def size() -> int:
            used, maximum = owners.owners.get("kv_cache", (lambda: 1, lambda: 1))
            return int(max_bytes * used() / max(1, maximum()))  # blocks get entries when used

        owners.add("prefix_index", size, lambda: max_bytes)

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Return memory and telemetry of the scheduler's process for `owners`."""
        if verb != "owners":
            return None
        gauges: dict[str, float] = {}
        for provide in gauge_providers(self._registry).values():
            gauges |= provide()
        histograms: dict[str, Any] = {}
        for provide_histograms in histogram_providers(self._registry).values():
            for name, histogram in provide_histograms().items():
                histograms[name] = (histogram.bounds, histogram.counts, histogram.sum)
        infos = {name: dict(info()) for name, info in info_providers(self._registry).items()}
        telemetry = {"infos": infos, "numbers": gauges, "histograms": histograms}
        cache = {"engine": self._rank, "num_blocks": self._num_blocks}
        memory = process_memory(self._registry, self._process)
        return msgspec.json.encode(memory | telemetry | cache)


class WorkerMemory:
    """Worker extension; it owns weights, KV cache and rows of its rank."""

    name = NAME

    def __init__(self, registry: Registry, rank: int | None = None) -> None:
        """`rank`: that of the engine if there are several."""
        self._registry = registry
        self._prefix = "" if rank is None else f"engine {rank} "
        self._process = f"{self._prefix}rank 0"

    def attach(self, parts: WorkerParts) -> None:
        """Register the allocated sizes, and the touched pages of a KV cache in host memory."""
        # lazy: the scheduler's process may have no torch
        from core.models.layers.loading import weight_bytes

        memory = memory_owners(self._registry)
        self._process = (
            f"{self._prefix}rank {parts.pipeline.rank * parts.group.size + parts.group.rank}"
        )
        weights = weight_bytes(parts.model)
        memory.add("weights", lambda: weights, lambda: weights)
        tensors = list({tensor.data_ptr(): tensor for tensor in parts.memory.values()}.values())
        cache = sum(tensor.nbytes for tensor in tensors)

        def used() -> int:
            if parts.device != "cpu":
                return cache
            return sum(touched_bytes(tensor.data_ptr(), tensor.nbytes) for tensor in tensors)

        memory.add("kv_cache", used, lambda: cache)
        rows = parts.batch.token_ids.nbytes + parts.batch.next_positions.nbytes
        memory.add("rows", lambda: rows, lambda: rows)

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Return the memory of this rank for `owners`."""
        if verb != "owners":
            return None
        return msgspec.json.encode(process_memory(self._registry, self._process))
