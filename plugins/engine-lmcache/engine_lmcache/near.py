"""What is in LMCache's memory (L1), and room for more: who was used longest ago goes, once it is in
L2.

LMCache's own eviction looks once a second, which a burst of blocks does not wait for, and lets go
what has yet to begin its way to L2.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from lmcache.v1.distributed.internal_api import L2AdapterListener

SPARE: Final = 8
"""With an L2, one part of so many of L1 is kept free, where that can be, for what comes from there.
"""
PAUSE_S: Final = 0.005
IDLE: Final = 3
"""Pauses in which LMCache stores nothing, after which what has not reached L2 never will."""


class Near:
    """The objects in L1, of all groups."""

    def __init__(self, manager: Any, timeout_s: float, *, has_l2: bool) -> None:
        self._manager = manager
        self._timeout_s = timeout_s
        self._has_l2 = has_l2
        self._names: OrderedDict[Any, None] = OrderedDict()
        """The least recently used first."""
        self._leaving: set[Any] = set()
        """Those that are on their way to L2, or about to be."""
        self._lock = threading.Lock()
        if has_l2:
            manager.register_l2_listener(Arrivals(self._arrived))

    def touch(self, name: Any) -> None:
        """It is there, and was used."""
        with self._lock:
            self._names[name] = None
            self._names.move_to_end(name)

    def wrote(self, name: Any) -> None:
        """It is about to be there, and to go on to L2."""
        if self._has_l2:
            with self._lock:
                self._leaving.add(name)
        self.touch(name)

    def forget(self, name: Any) -> None:
        """It is there no more."""
        with self._lock:
            self._names.pop(name, None)
            self._leaving.discard(name)

    def reserve(self, name: Any, layout: Any, num_bytes: int) -> Any:
        """Return memory for an object that takes so much of L1.

        Raises `TimeoutError` where none becomes free.
        """
        end_s = time.monotonic() + self._timeout_s
        wanted = num_bytes
        while True:
            self.make_room(wanted)
            place = self._manager.reserve_write([name], layout).get(name)
            if place is not None:
                return place
            # It has come from L2 meanwhile, and is an older one; or what is free lies apart.
            self._manager.delete_l1_keys([name])
            wanted += num_bytes
            if time.monotonic() > end_s:
                raise TimeoutError("LMCache has no room for it in L1")
            time.sleep(PAUSE_S)

    def make_room(self, num_bytes: int) -> None:
        """Have so much of L1 free.

        Raises `TimeoutError` where it stays full of what has yet to leave.
        """
        end_s = time.monotonic() + self._timeout_s
        num_idle = 0
        while not self._let_go(num_bytes):
            num_idle = 0 if is_storing(self._manager) else num_idle + 1
            if num_idle > IDLE:
                with self._lock:
                    self._leaving.clear()  # it was there before, or L2 does not take it
            if time.monotonic() > end_s:
                raise TimeoutError("LMCache's L1 is full, and what is there does not leave")
            time.sleep(PAUSE_S)

    def _let_go(self, num_bytes: int) -> bool:
        """Let the least recently used go that may; say whether there is room."""
        free, total = self._free()
        wanted = num_bytes + (total // SPARE if self._has_l2 else 0)
        if free >= wanted:
            return True
        with self._lock:
            for name in [each for each in self._names if each not in self._leaving]:
                if not self._manager.delete_l1_keys([name])[1]:  # else it is being read
                    del self._names[name]
                    free, _ = self._free()
                    if free >= wanted:
                        break
        return free >= num_bytes

    def _free(self) -> tuple[int, int]:
        used, total = self._manager.get_l1_usage()
        return total - used, total

    def _arrived(self, names: list[Any]) -> None:
        with self._lock:
            self._leaving.difference_update(names)


class Arrivals(L2AdapterListener):  # type: ignore[misc]  # LMCache's are not looked at
    """Hears what has reached L2."""

    def __init__(self, arrived: Callable[[list[Any]], None]) -> None:
        self._arrived = arrived

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        """These have."""
        self._arrived(keys)

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        """Nothing follows."""

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        """Nothing follows."""


def is_storing(manager: Any) -> bool:
    """Say whether LMCache has anything on its way to L2."""
    controllers = manager.report_status()["store_controllers"].values()
    return any(each["pending_keys_count"] or each["in_flight_task_count"] for each in controllers)
