"""Adapters in host memory and in slots: what is loaded, evicted and assigned.

Loads, drops and slot changes are collected until the next step sends them to the workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from builtin_plugins.features.lora.messages import AdapterRef, LoadResult, StepUpdate
from core.api import EngineError


@dataclass(slots=True)
class HostAdapter:
    """An adapter in host memory, or being loaded."""

    ref: AdapterRef
    ready: bool = False
    results: dict[int, LoadResult] = field(default_factory=dict)
    """Load results, by rank."""
    slot: int = -1
    holders: set[str] = field(default_factory=set)
    """Requests that may start or have started."""
    waiting: set[str] = field(default_factory=set)
    pinned: bool = False
    requested: bool = False
    """Whether it was loaded by name, without a waiting request."""
    last_used: int = 0
    """Counter value of its last use; the smallest is evicted first."""

    @property
    def is_free(self) -> bool:
        """Whether no request holds or awaits it, so it may be evicted."""
        return not (self.holders or self.waiting or self.pinned or self.requested)


class AdapterCache:
    """The adapters in host memory, some of them in slots."""

    def __init__(self, num_slots: int, max_adapters: int) -> None:
        self.max_adapters = max_adapters
        self.adapters: dict[bytes, HostAdapter] = {}
        """By digest."""
        self._slots: list[bytes] = [b""] * num_slots
        """Digest in each slot; empty: the slot was never used."""
        self._load: list[AdapterRef] = []
        self._drop: list[bytes] = []
        self._slot_updates: list[tuple[int, bytes]] = []
        self._use_counter = 0

    @property
    def num_slots(self) -> int:
        """Number of slots."""
        return len(self._slots)

    @property
    def num_pinned(self) -> int:
        """Number of pinned adapters."""
        return sum(each.pinned for each in self.adapters.values())

    @property
    def num_idle_slots(self) -> int:
        """Number of slots that could be assigned now."""
        unused = sum(not digest for digest in self._slots)
        return unused + sum(
            not each.holders and not each.pinned
            for each in self.adapters.values()
            if each.slot >= 0
        )

    @property
    def has_room(self) -> bool:
        """Whether another adapter could be loaded now."""
        if len(self.adapters) < self.max_adapters:
            return True
        return any(each.is_free for each in self.adapters.values())

    def start_load(self, ref: AdapterRef) -> HostAdapter | None:
        """Start loading an adapter; None while host memory is full."""
        while len(self.adapters) >= self.max_adapters:
            free = [each for each in self.adapters.values() if each.is_free and each.ready]
            if not free:
                return None
            self.evict(min(free, key=lambda each: (each.slot >= 0, each.last_used)))
        adapter = self.adapters[ref.digest] = HostAdapter(ref)
        if ref.digest in self._drop:  # not sent yet; workers report that they have it
            self._drop.remove(ref.digest)
        self._load.append(ref)
        return adapter

    def forget_load(self, ref: AdapterRef) -> None:
        """Leave a load out of the next update: workers receive the call that started it."""
        self._load.remove(ref)

    def evict(self, adapter: HostAdapter) -> None:
        """Remove an adapter from host memory and its slot."""
        digest = adapter.ref.digest
        del self.adapters[digest]
        if adapter.slot >= 0:
            self._slots[adapter.slot] = b""
            self._slot_updates = [each for each in self._slot_updates if each[1] != digest]
        self._drop.append(digest)

    def assign_slot(self, adapter: HostAdapter) -> bool:
        """Return whether the adapter is in a slot, assigning a free one if possible."""
        if adapter.slot >= 0:
            return True
        slot = next((index for index, digest in enumerate(self._slots) if not digest), None)
        if slot is None:
            idle = [
                each
                for each in map(self.adapters.__getitem__, self._slots)
                if not each.holders and not each.pinned
            ]
            if not idle:
                return False
            evicted = min(idle, key=lambda each: (bool(each.waiting), each.last_used))
            slot = evicted.slot
            evicted.slot = -1
            self._slot_updates = [each for each in self._slot_updates if each[0] != slot]
        self._slots[slot] = adapter.ref.digest
        adapter.slot = slot
        self._slot_updates.append((slot, adapter.ref.digest))
        return True

    def hold(self, adapter: HostAdapter, request_id: str) -> None:
        """Record that a request uses an adapter from now on."""
        adapter.waiting.discard(request_id)
        adapter.holders.add(request_id)
        self._use_counter += 1
        adapter.last_used = self._use_counter

    @property
    def has_loads(self) -> bool:
        """Whether workers have loads or drops to start."""
        return bool(self._load or self._drop)

    @property
    def has_updates(self) -> bool:
        """Whether the next step has anything to send."""
        return bool(self._load or self._drop or self._slot_updates)

    def take_update(self, rows: list[tuple[int, int]]) -> StepUpdate:
        """Return the collected changes with a step's rows, and start collecting anew."""
        update = StepUpdate(self._load, self._drop, self._slot_updates, rows)
        self._load = []
        self._drop = []
        self._slot_updates = []
        return update

    def check(self) -> None:
        """Raise `EngineError` for inconsistent state; for tests."""
        for index, digest in enumerate(self._slots):
            if digest and self.adapters[digest].slot != index:
                raise EngineError(f"slot {index} does not hold its adapter")
        if len(self.adapters) > self.max_adapters:
            raise EngineError("more adapters are in host memory than allowed")
