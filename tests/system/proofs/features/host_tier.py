"""A host-memory tier: evicted blocks are stored, and loaded for prompts with equal prefixes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from core.api import Option, hookimpl

NAME = "host_tier"


class Copy(msgspec.Struct, array_like=True, frozen=True):
    """A copy of one block between a pool and a host-memory slot."""

    pool: int
    block: int
    slot: int
    load: bool


@hookimpl
def engine_options():
    return [Option("host_blocks", int, 0, "Blocks of the host-memory tier.")]


@hookimpl
def engine_scheduler_extensions(config, registry):
    capacity = config.options["host_blocks"]
    return [Directory(capacity)] if capacity else []


@hookimpl
def engine_runner_extensions(config, registry):
    capacity = config.options["host_blocks"]
    return [Copier(capacity)] if capacity else []


class Directory:
    """Scheduler half: the slot of each key; decides every copy, executed in order."""

    name = NAME

    def __init__(self, capacity: int) -> None:
        self._free = list(range(capacity))
        self._slots: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._promised: set[tuple[int, bytes]] = set()
        """Keys reported as held while this plan is made."""
        self._copies: list[Copy] = []
        self.num_stored = self.num_loaded = 0

    def attach(self, scheduler: Any) -> None:
        layout = scheduler.kv.layout
        self._groups = layout.groups
        self._hash = layout.hash_block_size
        scheduler.kv.add_tier(self._holds)
        scheduler.kv.add_listener(lambda lease, tokens, start: None, self._removed)

    def _holds(self, group: int, key: bytes) -> bool:
        if (group, key) not in self._slots:
            return False
        self._promised.add((group, key))
        return True

    def _removed(self, group: int, key: bytes, block: int, valid: bool) -> None:
        if valid:
            self._store(group, key, block)

    def _store(self, group: int, key: bytes, block: int) -> None:
        if (group, key) in self._slots:
            self._slots.move_to_end((group, key))
            return
        if self._free:
            slot = self._free.pop()
        else:
            oldest = next((entry for entry in self._slots if entry not in self._promised), None)
            if oldest is None:
                return
            slot = self._slots.pop(oldest)
        self._slots[group, key] = slot
        self._copies.append(Copy(self._groups[group].pool, block, slot, False))
        self.num_stored += 1

    def load(self, request: Any, loads: Any) -> bool:
        for load in loads:
            slot = self._slots.get((load.group, load.key))
            if slot is not None:
                self._copies.append(Copy(self._groups[load.group].pool, load.block, slot, True))
                self.num_loaded += 1
        return True

    def finished(self, request: Any) -> bool:
        for index, group in enumerate(self._groups):
            size = group.block_size
            links = group.block_size // self._hash
            table = request.tables[index]
            for block in range(request.num_published // size):
                if table[block]:
                    self._store(index, request.keys[(block + 1) * links - 1], table[block])
        return False

    def pending(self) -> bool:
        return bool(self._copies)

    def planned(self, plan: Any) -> bytes | None:
        self._promised.clear()
        copies = self._copies
        self._copies = []
        return msgspec.msgpack.encode(copies) if copies else None


class Copier:
    """Worker half: copies blocks, slot by slot of the pool's layers, before the step reads or
    writes anything.
    """

    name = NAME

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity

    def attach(self, parts: Any) -> None:
        import torch

        self._device: dict[int, list[Any]] = {}
        self._host: dict[int, list[Any]] = {}
        for (pool, _), memory in parts.memory.items():
            self._device.setdefault(pool, []).append(memory)
            self._host.setdefault(pool, []).append(
                torch.zeros((self._capacity, memory.shape[1]), dtype=torch.uint8)
            )

    def begin(self, payload: bytes | None) -> None:
        for copy in () if payload is None else msgspec.msgpack.decode(payload, type=list[Copy]):
            for device, host in zip(self._device[copy.pool], self._host[copy.pool], strict=True):
                if copy.load:
                    device[copy.block].copy_(host[copy.slot])
                else:
                    host[copy.slot].copy_(device[copy.block])
