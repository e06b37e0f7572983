"""A rank's blocks in LMCache: our keys are its chunk hashes, our KV groups its object groups, the
fingerprint its model.

LMCache writes what comes into its memory (L1) to what lies behind it (L2) in threads of its own.
What is dropped here is deleted in both. Room in L1 is made by this store (`near`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchLockMode,
    PrefetchResult,
    PrefetchTaskSpec,
)

from core.api import BlockKey, StoreParts
from engine_lmcache.near import PAUSE_S, Near, is_storing
from engine_lmcache.objects import HEAD_BYTES, fill, padded, seal_in, take

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Block

CLOSE_S: Final = 3.0


class Chunks:
    """The objects of one fingerprint."""

    seal: Literal["sum", "crc32"] = "crc32"

    def __init__(self, manager: Any, parts: StoreParts, timeout_s: float, *, has_l2: bool) -> None:
        self._manager = manager
        self._fingerprint = parts.fingerprint
        self._timeout_s = timeout_s
        self._has_l2 = has_l2
        self._kv_rank = ObjectKey.ComputeKVRank(
            parts.num_ranks, parts.rank, parts.num_ranks, parts.rank
        )
        self._padded = [padded(num_bytes) for num_bytes in parts.block_bytes]
        self._layouts = [
            MemoryLayoutDesc([torch.Size([HEAD_BYTES + num_bytes])], [torch.uint8])
            for num_bytes in parts.block_bytes
        ]
        self._near = Near(manager, timeout_s, has_l2=has_l2)

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: L2 is asked for what is wanted."""
        return ()

    def look(self, keys: Sequence[BlockKey]) -> Iterable[BlockKey]:
        """Return those that are in L2 or L1; what L1 has room for is fetched meanwhile.

        Where none of the groups' first blocks is there, those behind it are not asked for: they are
        of no use, or rarely.
        """
        groups = [
            [key for key in keys if key.group == group] for group in range(len(self._layouts))
        ]
        if not any(self._found(group[:1]) for group in groups):
            return []
        return [key for group in groups for key in self._found(group)]

    def _found(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        """Return which blocks of one group are there."""
        if not keys:
            return []
        names = [self._name(key) for key in keys]
        result = self._prefetched(names, PrefetchLockMode.NO_LOCK)
        for place in result.hit_cells[0].get_indices_list():
            self._near.touch(names[place])
        there = result.hit_cells if result.found_cells is None else result.found_cells
        return [keys[place] for place in there[0].get_indices_list()]

    def write(self, key: BlockKey, block: Block, seal: bytes) -> None:
        """Put an object into L1, from where it goes on.

        Raises `TimeoutError` where L1 stays full of what has yet to leave.
        """
        name = self._name(key)
        place = self._near.reserve(name, self._layouts[key.group], self._padded[key.group])
        fill(place.byte_array, block, seal)
        self._near.wrote(name)
        self._manager.finish_write([name])

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Copy an object's block. Raises `FileNotFoundError` where it is gone."""
        name = self._name(key)
        if not self._fetched(name):
            raise FileNotFoundError("LMCache has it no more")
        with self._manager.read_prefetched_results([name]) as found:
            head = take(found[0].byte_array, block) if found else None
        if head is None:
            raise FileNotFoundError("LMCache has forgotten it")
        self._manager.finish_read_prefetched([name])
        self._near.touch(name)
        return seal_in(head)

    def _fetched(self, name: ObjectKey) -> bool:
        """Have an object held in L1; say whether there is any.

        Raises `OSError` where there is, and it does not come.
        """
        if self._prefetched([name], PrefetchLockMode.LOCK, skip_l2=True).hit_cells[0].popcount():
            return True
        if not self._has_l2:
            return False
        self._near.make_room(self._padded[name.object_group_id])
        result = self._prefetched([name], PrefetchLockMode.LOCK)
        if result.hit_cells[0].popcount():
            return True
        if result.found_cells is not None and result.found_cells[0].popcount():
            raise OSError(
                "LMCache has found it in L2, and cannot read it, or has no room for it in L1"
            )
        return False

    def _prefetched(
        self, names: list[ObjectKey], mode: PrefetchLockMode, *, skip_l2: bool = False
    ) -> PrefetchResult:
        """Return what became of objects of one group. Raises `TimeoutError`."""
        group = names[0].object_group_id
        row = GroupedObjectKeys(names, group, self._layouts[group])
        # Each for itself: of a window's blocks the first ones may be gone.
        spec = PrefetchTaskSpec([row], fetching_policy="full", lock_mode=mode)
        handle = self._manager.submit_prefetch_task(spec, skip_l2=skip_l2)
        if not self._manager.wait_prefetch_status(handle, self._timeout_s):
            for name in names:
                self._near.touch(name)  # it may come yet, and must be found where room is made
            raise TimeoutError(f"LMCache does not answer within {self._timeout_s:g} s")
        result: PrefetchResult = self._manager.query_prefetch_status(handle)
        return result

    def drop(self, key: BlockKey) -> None:
        """Delete an object, once it is not on its way to L2 any more.

        Raises `TimeoutError` where that takes too long.
        """
        name = self._name(key)
        end_s = time.monotonic() + self._timeout_s
        while self._manager.delete_l1_keys([name])[1]:
            if time.monotonic() > end_s:
                raise TimeoutError("LMCache does not let go of it")
            time.sleep(PAUSE_S)
        self._near.forget(name)
        for _, adapter in self._manager.l2_adapters():
            adapter.delete([name])

    def close(self) -> None:
        """Give what is on its way to L2 a moment, and end LMCache's threads."""
        end_s = time.monotonic() + CLOSE_S
        while is_storing(self._manager) and time.monotonic() < end_s:
            time.sleep(PAUSE_S)
        self._manager.close()

    def _name(self, key: BlockKey) -> ObjectKey:
        return ObjectKey(key.key, self._fingerprint, self._kv_rank, key.group)
