"""Watches some blocks of the prefix cache from when they can be found until they no longer can.
Knows no tier.

What vLLM calls an access is a request that begins with the block. Names of metrics are vLLM's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from core.contracts.spreads import Spread
from core.step import StepPlan

NAME: Final = "kv_metrics"
SECONDS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0),
)
LIFETIME: Final = "kv_block_lifetime_seconds"
IDLE: Final = "kv_block_idle_before_evict_seconds"
GAP: Final = "kv_block_reuse_gap_seconds"


class Residency:
    """Measures; what is computed or forgotten is none of its business."""

    name = NAME

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`share`: of blocks that are watched, above 0 and up to 1."""
        self._share = share
        self._clock = clock
        self._random = Random().random
        self._watched: dict[tuple[int, bytes], tuple[float, float]] = {}
        """When a block came, and when a request last began with it."""
        self._spreads = {name: Spread(SECONDS) for name in (LIFETIME, IDLE, GAP)}
        self._requests: dict[str, Any] = {}

    def spreads(self) -> Mapping[str, Spread]:
        """Return what was measured since the start."""
        return self._spreads

    def attach(self, scheduler: Any) -> None:
        """Watch its cache."""
        kv = scheduler.kv
        self._links = [group.block_size // kv.layout.hash_block_size for group in kv.layout.groups]
        self._sizes = [group.block_size for group in kv.layout.groups]
        self._found = [
            kv.pools[group.pool].find(index) for index, group in enumerate(kv.layout.groups)
        ]
        kv.watch(self._offered, self._forgotten)

    def arrived(self, request: Any) -> None:
        """Remember who it is until it ends."""
        self._requests[request.request_id] = request

    def finished(self, request: Any) -> bool:
        """Forget it."""
        self._requests.pop(request.request_id, None)
        return False

    def planned(self, plan: StepPlan) -> None:
        """See which blocks requests begin with that start in this step."""
        if not (plan.new and self._watched):
            return
        starts = dict(zip(plan.rows, plan.starts, strict=True))
        now_s = self._clock()
        for new in plan.new:
            keys = self._requests[new.request_id].keys
            for group, (size, links, blocks) in enumerate(
                zip(self._sizes, self._links, new.blocks, strict=True)
            ):
                for place in range(starts[new.row] // size):
                    key = (group, keys[(place + 1) * links - 1])
                    if blocks[place] and key in self._watched:
                        came_s, used_s = self._watched[key]
                        self._spreads[GAP].observe(now_s - used_s)
                        self._watched[key] = came_s, now_s

    def _offered(self, lease: Any, tokens: Any, start: int) -> None:
        now_s = self._clock()
        for group, (size, links, found) in enumerate(
            zip(self._sizes, self._links, self._found, strict=True)
        ):
            for key in lease.keys[
                (start // size + 1) * links - 1 : lease.offered // size * links : links
            ]:
                if self._random() < self._share and key in found:
                    self._watched.setdefault((group, key), (now_s, now_s))

    def _forgotten(self, group: int, key: bytes, block: int, right: bool) -> None:
        times = self._watched.pop((group, key), None)
        if times is not None:
            now_s = self._clock()
            self._spreads[LIFETIME].observe(now_s - times[0])
            self._spreads[IDLE].observe(now_s - times[1])
