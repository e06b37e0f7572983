"""Blocks that the cache forgets are kept in host memory, and come back when a prompt begins alike."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from core.api import Option, hookimpl

NAME = "host_tier"


class Copy(msgspec.Struct, array_like=True, frozen=True):
    """One block of a pool, on its way to a place in host memory or back."""

    pool: int
    block: int
    place: int
    load: bool


@hookimpl
def engine_options():
    return [Option("host_blocks", int, 0, "Blocks kept in host memory.")]


@hookimpl
def engine_scheduler_extensions(config, registry):
    most = config.options["host_blocks"]
    return [Directory(most)] if most else []


@hookimpl
def engine_runner_extensions(config, registry):
    most = config.options["host_blocks"]
    return [Copier(most)] if most else []


class Directory:
    """Scheduler half: which key lies in which place.

    It decides every copy; the worker halves obey in order.
    """

    name = NAME

    def __init__(self, most: int) -> None:
        self._free = list(range(most))
        self._places: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._promised: set[tuple[int, bytes]] = set()
        """What it was said to hold while this plan is made."""
        self._copies: list[Copy] = []
        self.num_stored = self.num_loaded = 0

    def attach(self, scheduler: Any) -> None:
        layout = scheduler.kv.layout
        self._groups = layout.groups
        self._hash = layout.hash_block_size
        scheduler.kv.add_tier(self._holds)
        scheduler.kv.watch(lambda lease, tokens, start: None, self._forgotten)

    def _holds(self, group: int, key: bytes) -> bool:
        if (group, key) not in self._places:
            return False
        self._promised.add((group, key))
        return True

    def _forgotten(self, group: int, key: bytes, block: int, right: bool) -> None:
        if right:
            self._store(group, key, block)

    def _store(self, group: int, key: bytes, block: int) -> None:
        if (group, key) in self._places:
            self._places.move_to_end((group, key))
            return
        if self._free:
            place = self._free.pop()
        else:
            oldest = next((entry for entry in self._places if entry not in self._promised), None)
            if oldest is None:
                return
            place = self._places.pop(oldest)
        self._places[group, key] = place
        self._copies.append(Copy(self._groups[group].pool, block, place, False))
        self.num_stored += 1

    def load(self, request: Any, loads: Any) -> bool:
        for wanted in loads:
            place = self._places.get((wanted.group, wanted.key))
            if place is not None:
                self._copies.append(
                    Copy(self._groups[wanted.group].pool, wanted.block, place, True)
                )
                self.num_loaded += 1
        return True

    def finished(self, request: Any) -> bool:
        for index, group in enumerate(self._groups):
            size = group.block_size
            links = group.block_size // self._hash
            table = request.tables[index]
            for block in range(request.num_offered // size):
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

    def __init__(self, most: int) -> None:
        self._most = most

    def attach(self, parts: Any) -> None:
        import torch

        self._device: dict[int, list[Any]] = {}
        self._host: dict[int, list[Any]] = {}
        for (pool, _), memory in parts.memory.items():
            self._device.setdefault(pool, []).append(memory)
            self._host.setdefault(pool, []).append(
                torch.zeros((self._most, memory.shape[1]), dtype=torch.uint8)
            )

    def begin(self, payload: bytes | None) -> None:
        for copy in () if payload is None else msgspec.msgpack.decode(payload, type=list[Copy]):
            for device, host in zip(self._device[copy.pool], self._host[copy.pool], strict=True):
                if copy.load:
                    device[copy.block].copy_(host[copy.place])
                else:
                    host[copy.place].copy_(device[copy.block])
