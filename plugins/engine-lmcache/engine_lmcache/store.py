"""A rank's blocks in LMCache.

Block keys are LMCache's chunk hashes, KV groups its object groups, and the fingerprint its model
name. LMCache copies objects from host memory (L1) to L2 in its own threads. Drops delete both
copies. `L1Cache` makes room in L1.
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

from builtin_plugins.kv_connectors.api import BlockKey, StoreParts
from engine_lmcache.block_objects import (
    HEAD_BYTES,
    checksum_in,
    padded,
    read_block,
    write_block,
)
from engine_lmcache.l1_cache import POLL_S, L1Cache, is_storing

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.api import Block

CLOSE_S: Final = 3.0


class LMCacheStore:
    """The objects of one fingerprint."""

    checksum: Literal["sum", "crc32"] = "crc32"

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
        self._l1 = L1Cache(manager, timeout_s, has_l2=has_l2)

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: L2 cannot be listed, so blocks are looked up."""
        return ()

    def lookup(self, keys: Sequence[BlockKey]) -> Iterable[BlockKey]:
        """Return the blocks in L2 or L1. Fetches those that L1 has room for.

        If the first block of every group is missing, later ones are not looked up: they are
        rarely of use.
        """
        groups = [
            [key for key in keys if key.group == group] for group in range(len(self._layouts))
        ]
        if not any(self._lookup_group(group[:1]) for group in groups):
            return []
        return [key for group in groups for key in self._lookup_group(group)]

    def _lookup_group(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        """Return the stored blocks of one group."""
        if not keys:
            return []
        names = [self._name(key) for key in keys]
        result = self._prefetch(names, PrefetchLockMode.NO_LOCK)
        for index in result.hit_cells[0].get_indices_list():
            self._l1.touch(names[index])
        found = result.hit_cells if result.found_cells is None else result.found_cells
        return [keys[index] for index in found[0].get_indices_list()]

    def write(self, key: BlockKey, block: Block, checksum: bytes) -> None:
        """Put an object into L1, from where LMCache copies it to L2.

        Raises `TimeoutError` if pending objects keep L1 full.
        """
        name = self._name(key)
        memory = self._l1.reserve(name, self._layouts[key.group], self._padded[key.group])
        write_block(memory.byte_array, block, checksum)
        self._l1.add(name)
        self._manager.finish_write([name])

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Copy a block out of its object. Raises `FileNotFoundError` for a missing one."""
        name = self._name(key)
        if not self._fetch(name):
            raise FileNotFoundError("LMCache does not have it any more")
        with self._manager.read_prefetched_results([name]) as found:
            header = read_block(found[0].byte_array, block) if found else None
        if header is None:
            raise FileNotFoundError("LMCache has evicted it meanwhile")
        self._manager.finish_read_prefetched([name])
        self._l1.touch(name)
        return checksum_in(header)

    def _fetch(self, name: ObjectKey) -> bool:
        """Lock an object in L1. Return whether it exists.

        Raises `OSError` if it exists and cannot be fetched.
        """
        if self._prefetch([name], PrefetchLockMode.LOCK, skip_l2=True).hit_cells[0].popcount():
            return True
        if not self._has_l2:
            return False
        self._l1.make_room(self._padded[name.object_group_id])
        result = self._prefetch([name], PrefetchLockMode.LOCK)
        if result.hit_cells[0].popcount():
            return True
        if result.found_cells is not None and result.found_cells[0].popcount():
            raise OSError("LMCache found it in L2, but could not read it or had no room in L1")
        return False

    def _prefetch(
        self, names: list[ObjectKey], mode: PrefetchLockMode, *, skip_l2: bool = False
    ) -> PrefetchResult:
        """Prefetch objects of one group. Raises `TimeoutError`."""
        group = names[0].object_group_id
        row = GroupedObjectKeys(names, group, self._layouts[group])
        # "full": each object by itself, as the first blocks of a window may be missing.
        spec = PrefetchTaskSpec([row], fetching_policy="full", lock_mode=mode)
        handle = self._manager.submit_prefetch_task(spec, skip_l2=skip_l2)
        if not self._manager.wait_prefetch_status(handle, self._timeout_s):
            for name in names:
                self._l1.touch(name)  # it may still arrive, and must be evictable then
            raise TimeoutError(f"LMCache does not answer within {self._timeout_s:g} s")
        result: PrefetchResult = self._manager.query_prefetch_status(handle)
        return result

    def drop(self, key: BlockKey) -> None:
        """Delete an object after its copy to L2 has ended. Raises `TimeoutError`."""
        name = self._name(key)
        end_s = time.monotonic() + self._timeout_s
        while self._manager.delete_l1_keys([name])[1]:
            if time.monotonic() > end_s:
                raise TimeoutError("LMCache still uses it")
            time.sleep(POLL_S)
        self._l1.forget(name)
        for _, adapter in self._manager.l2_adapters():
            adapter.delete([name])

    def close(self) -> None:
        """Wait a little for copies to L2, and end LMCache's threads."""
        end_s = time.monotonic() + CLOSE_S
        while is_storing(self._manager) and time.monotonic() < end_s:
            time.sleep(POLL_S)
        self._manager.close()

    def _name(self, key: BlockKey) -> ObjectKey:
        return ObjectKey(key.key, self._fingerprint, self._kv_rank, key.group)
