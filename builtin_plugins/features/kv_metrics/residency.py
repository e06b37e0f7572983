"""Samples prefix cache blocks from publication to removal, and measures lifetime and reuse.

vLLM calls it an access when a request starts with the block. Metric names are vLLM's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from builtin_plugins.metric_sinks.api import Histogram
from core.api.execution import StepPlan

NAME: Final = "kv_metrics"
SECONDS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0),
)
LIFETIME: Final = "kv_block_lifetime_seconds"
IDLE: Final = "kv_block_idle_before_evict_seconds"
GAP: Final = "kv_block_reuse_gap_seconds"


class BlockResidency:
    """Fills the histograms of sampled blocks. It never changes the cache."""

    name = NAME

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`share`: of blocks that are sampled, above 0 and up to 1."""
        self._share = share
        self._clock = clock
        self._random = Random().random
        self._sampled: dict[tuple[int, bytes], tuple[float, float]] = {}
        """Times of publication and of the last use of sampled blocks."""
        self._histograms = {name: Histogram(SECONDS) for name in (LIFETIME, IDLE, GAP)}
        self._requests: dict[str, Any] = {}

    def histograms(self) -> Mapping[str, Histogram]:
        """Return the histograms, by metric."""
        return self._histograms

    def attach(self, scheduler: Any) -> None:
        """Listen to the cache."""
        kv = scheduler.kv
        layout = kv.layout
        self._hashes_per_block = [
            group.block_size // layout.hash_block_size for group in layout.groups
        ]
        self._block_sizes = [group.block_size for group in layout.groups]
        self._cached = [
            kv.pools[group.pool].cached_blocks(index) for index, group in enumerate(layout.groups)
        ]
        kv.add_listener(self._on_published, self._on_removed)

    def arrived(self, request: Any) -> None:
        """Remember a request until it ends."""
        self._requests[request.request_id] = request

    def finished(self, request: Any) -> bool:
        """Forget a request."""
        self._requests.pop(request.request_id, None)
        return False

    def planned(self, plan: StepPlan) -> None:
        """Count the cached blocks of the requests that start in this step as used."""
        if not (plan.new and self._sampled):
            return
        starts = dict(zip(plan.rows, plan.starts, strict=True))
        now_s = self._clock()
        for new in plan.new:
            keys = self._requests[new.request_id].keys
            for group, (size, hashes_per_block, blocks) in enumerate(
                zip(self._block_sizes, self._hashes_per_block, new.blocks, strict=True)
            ):
                for index in range(min(starts[new.row] // size, len(blocks))):
                    key = (group, keys[(index + 1) * hashes_per_block - 1])
                    if blocks[index] and key in self._sampled:
                        published_s, used_s = self._sampled[key]
                        self._histograms[GAP].observe(now_s - used_s)
                        self._sampled[key] = published_s, now_s

    def _on_published(self, lease: Any, tokens: Any, start: int) -> None:
        now_s = self._clock()
        for group, (size, hashes_per_block, cached) in enumerate(
            zip(self._block_sizes, self._hashes_per_block, self._cached, strict=True)
        ):
            first = (start // size + 1) * hashes_per_block - 1
            end = lease.num_published // size * hashes_per_block
            for key in lease.keys[first:end:hashes_per_block]:
                if self._random() < self._share and key in cached:
                    self._sampled.setdefault((group, key), (now_s, now_s))

    def _on_removed(self, group: int, key: bytes, block: int, valid: bool) -> None:
        times = self._sampled.pop((group, key), None)
        if times is not None:
            published_s, used_s = times
            now_s = self._clock()
            self._histograms[LIFETIME].observe(now_s - published_s)
            self._histograms[IDLE].observe(now_s - used_s)
