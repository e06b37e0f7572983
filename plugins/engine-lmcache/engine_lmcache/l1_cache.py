"""LRU cache of objects in LMCache's host memory (L1). Evicts objects that have reached L2.

LMCache's own eviction runs once a second, too late for a burst of blocks, and may evict objects
before they are copied to L2.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from lmcache.v1.distributed.internal_api import L2AdapterListener

FREE_FRACTION: Final = 8
"""With L2, 1/8 of L1 stays free if possible, for objects that are loaded from there."""
POLL_S: Final = 0.005
MAX_IDLE_POLLS: Final = 3
"""Polls without any store after which pending objects are assumed to never reach L2."""


class L1Cache:
    """The objects in L1, of all KV groups."""

    def __init__(self, manager: Any, timeout_s: float, *, has_l2: bool) -> None:
        self._manager = manager
        self._timeout_s = timeout_s
        self._has_l2 = has_l2
        self._names: OrderedDict[Any, None] = OrderedDict()
        """Objects in L1, least recently used first."""
        self._pending: set[Any] = set()
        """Objects that are being copied to L2, or are about to be."""
        self._lock = threading.Lock()
        if has_l2:
            manager.register_l2_listener(StoreListener(self._on_stored))

    def touch(self, name: Any) -> None:
        """Mark an object as present and just used."""
        with self._lock:
            self._names[name] = None
            self._names.move_to_end(name)

    def add(self, name: Any) -> None:
        """Add an object that LMCache is about to copy to L2."""
        if self._has_l2:
            with self._lock:
                self._pending.add(name)
        self.touch(name)

    def forget(self, name: Any) -> None:
        """Remove a deleted object."""
        with self._lock:
            self._names.pop(name, None)
            self._pending.discard(name)

    def reserve(self, name: Any, layout: Any, num_bytes: int) -> Any:
        """Return memory for an object of `num_bytes`. Raises `TimeoutError` without any."""
        end_s = time.monotonic() + self._timeout_s
        needed = num_bytes
        while True:
            self.make_room(needed)
            memory = self._manager.reserve_write([name], layout).get(name)
            if memory is not None:
                return memory
            # An older object of this name came from L2, or the free memory is fragmented.
            self._manager.delete_l1_keys([name])
            needed += num_bytes
            if time.monotonic() > end_s:
                raise TimeoutError("LMCache has no room for it in L1")
            time.sleep(POLL_S)

    def make_room(self, num_bytes: int) -> None:
        """Free memory in L1. Raises `TimeoutError` if pending objects keep it full."""
        end_s = time.monotonic() + self._timeout_s
        num_idle = 0
        while not self._evict(num_bytes):
            num_idle = 0 if is_storing(self._manager) else num_idle + 1
            if num_idle > MAX_IDLE_POLLS:
                with self._lock:
                    self._pending.clear()  # L2 had them before, or does not accept them
            if time.monotonic() > end_s:
                raise TimeoutError("LMCache's L1 is full of objects that do not reach L2")
            time.sleep(POLL_S)

    def _evict(self, num_bytes: int) -> bool:
        """Evict the least recently used objects. Return whether `num_bytes` are free."""
        free, total = self._free()
        needed = num_bytes + (total // FREE_FRACTION if self._has_l2 else 0)
        if free >= needed:
            return True
        with self._lock:
            for name in [each for each in self._names if each not in self._pending]:
                if not self._manager.delete_l1_keys([name])[1]:  # otherwise it is being read
                    del self._names[name]
                    free, _ = self._free()
                    if free >= needed:
                        break
        return free >= num_bytes

    def _free(self) -> tuple[int, int]:
        used, total = self._manager.get_l1_usage()
        return total - used, total

    def _on_stored(self, names: list[Any]) -> None:
        with self._lock:
            self._pending.difference_update(names)


class StoreListener(L2AdapterListener):  # type: ignore[misc]  # LMCache is untyped here
    """Reports the objects that have reached L2."""

    def __init__(self, on_stored: Callable[[list[Any]], None]) -> None:
        self._on_stored = on_stored

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        """Report stored objects."""
        self._on_stored(keys)

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        """Do nothing."""

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        """Do nothing."""


def is_storing(manager: Any) -> bool:
    """Return whether LMCache is copying objects to L2."""
    controllers = manager.report_status()["store_controllers"].values()
    return any(each["pending_keys_count"] or each["in_flight_task_count"] for each in controllers)
