"""KV block allocation for requests: admission, growth, windows, and blocks of
steps in flight.

Knows tokens, positions and step numbers; knows no request, no budget and no policy.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from operator import mul
from typing import Final

from core.kv.layout import NULL_BLOCKS, CacheCapacity
from core.kv.lease import NEVER, Hit, Lease, Load
from core.kv.prefix_cache import PrefixCache
from core.kv.windows import first_visible_position, peak_blocks
from core.model_spec.kv import KVLayout, RecurrentState

Appended = list[tuple[int, list[int]]]
"""(group, block ids appended to its block table); groups without new blocks
are absent.
"""

PLENTY_BLOCKS: Final = 256
"""Free blocks per pool above which blocks are allocated ahead of time."""


class KVManager(PrefixCache):
    """The scheduler's view of one worker's KV cache, or of mirrored ranks.

    Blocks freed while a step is in flight are reused after the last issued step has
    returned: the scheduler reports `step_issued` and `step_returned`.
    """

    def __init__(
        self, layout: KVLayout, *, prefix_caching: bool = True, identity: str = ""
    ) -> None:
        super().__init__(layout, prefix_caching=prefix_caching, identity=identity)
        sizes = enumerate(self._sizes)
        room = (sys.maxsize if index in self._cross else size for index, size in sizes)
        self._tokens_per_block: Final = tuple(room)
        spare = [g.spec.spare for g in layout.groups if isinstance(g.spec, RecurrentState)]
        self.max_draft_tokens: Final = min(spare, default=sys.maxsize)
        """Draft tokens per step: one spare recurrent state each, to roll back."""
        self.capacity: Final = CacheCapacity(layout)
        """The sizes of sequences that fit."""
        self.returned = 0
        """Last step with an arrived result."""
        self._deferred: deque[tuple[int, int, list[int]]] = deque()
        """(step, pool, blocks freed after that step)."""

    # --- what fits ----------------------------------------------------------

    @property
    def usage(self) -> float:
        """Fraction of blocks held by requests or steps in flight, 0 to 1."""
        total = sum(pool.num_blocks - NULL_BLOCKS for pool in self.pools)
        free = sum(pool.num_free for pool in self.pools)
        return 1 - free / total if total else 0.0

    @property
    def is_windowed(self) -> bool:
        """Whether any group frees blocks while its request runs."""
        return bool(self._local)

    @property
    def is_plentiful(self) -> bool:
        """Whether every pool has blocks to allocate ahead of time."""
        return all(p.num_free >= max(PLENTY_BLOCKS, p.num_blocks // 4) for p in self.pools)

    def will_fit(self, lease: Lease, start: int, end: int) -> bool:
        """Return whether `extend` succeeds after the steps in flight."""
        needed = self._per_pool(self._missing(lease, start, end))
        for _, pool, blocks in self._deferred:
            refs = self.pools[pool].refs
            needed[pool] -= sum(refs[block] == 1 for block in blocks)
        return self._has_free(needed)

    # --- a request's blocks -------------------------------------------------

    def admit(
        self,
        lease: Lease,
        hit: Hit,
        start: int,
        end: int,
        reserve: int,
        max_step_tokens: int,
    ) -> bool:
        """Allocate the blocks of `hit` and slots for the tokens start..end;
        False if out of blocks.

        Requires free blocks for `reserve` tokens, computed in steps of up to
        `max_step_tokens`, so that a new request is not preempted soon. Allocates
        nothing when it returns False.
        """
        needed = [0] * len(self.pools)
        found = []
        for index, group in enumerate(self._groups):
            blocks = self._visible_hit(index, hit, start)
            found.append(blocks)
            size = group.block_size
            first = first_visible_position(group.spec, start) // size
            is_cross = index in self._cross
            low = 0 if is_cross else max(hit.num_tokens // size, first)
            # Blocks that a tier fills count as well: refs[0] is 0.
            refs = self._pool_of[index].refs
            revived = [refs[block] for block in blocks].count(0)
            # Shared blocks stay held after the window has passed.
            peak = peak_blocks(group.spec, size, reserve, max_step_tokens) - revived
            now = lease.num_encoder_positions if is_cross else end
            later = lease.num_encoder_positions if is_cross else reserve
            fresh = max(-(-now // size) - low, min(-(-later // size) - low, peak))
            needed[group.pool] += fresh + revived
        if not self._has_free(needed):
            return False
        lease.loads = []
        if hit.num_tokens:
            self._take_hit(lease, hit, found)
        lease.num_hit = hit.num_local - hit.num_local % self._align
        lease.num_published = lease.num_hit
        lease.published_since = NEVER
        lease.first_unverified = hit.num_local if hit.loads else NEVER
        self.extend(lease, start, end)
        return True

    def _visible_hit(self, index: int, hit: Hit, start: int) -> Sequence[int]:
        """Return a group's hit blocks without those before the window of `start`."""
        if not hit.blocks:
            return ()
        size = self._sizes[index]
        blocks = hit.blocks[index]
        first = first_visible_position(self._groups[index].spec, start) // size
        return blocks[max(0, first - hit.num_tokens // size + len(blocks)) :]

    def _take_hit(self, lease: Lease, hit: Hit, found: Sequence[Sequence[int]]) -> None:
        """Hold the found blocks and allocate those that tiers must fill."""
        # Hold found blocks first, or `allocate` could evict them.
        for pool, blocks in zip(self._pool_of, found, strict=True):
            pool.touch(filter(None, blocks))
        for index, size in self._shared:
            blocks = found[index]
            first = hit.num_tokens // size - len(blocks)
            links = self._links_per_block(index)
            num_missing = sum(not block for block in blocks)
            allocated = iter(self._pool_of[index].allocate(num_missing))
            table = [block or next(allocated) for block in blocks]
            for position, (block, cached) in enumerate(zip(table, blocks, strict=True), first):
                if not cached:
                    key = lease.keys[(position + 1) * links - 1]
                    lease.loads.append(Load(index, key, block))
            lease.first[index] = first
            lease.tables[index] = [0] * first + table

    def extend(self, lease: Lease, start: int, end: int) -> Appended | None:
        """Allocate slots for the tokens start..end; return the appended blocks.

        Returns None, and allocates nothing, if a pool is out of blocks.
        """
        missing = self._missing(lease, start, end)
        if len(missing) == 1:
            index, _, fresh = missing[0]
            if fresh > self._pool_of[index].num_free:
                return None
        elif missing and not self._has_free(self._per_pool(missing)):
            return None
        appended: Appended = []
        for index, nulls, fresh in missing:
            table = lease.tables[index]
            blocks = self._pool_of[index].allocate(fresh)
            if nulls:
                lease.first[index] = len(table) + nulls
                blocks = [0] * nulls + blocks
            table += blocks
            appended.append((index, blocks))
        slots = map(mul, map(len, lease.tables), self._tokens_per_block)
        # A cross group without encoder positions has no blocks, and no bound.
        lease.capacity = min(filter(None, slots), default=sys.maxsize)
        return appended

    def _missing(self, lease: Lease, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (group, null blocks, blocks to allocate) of groups that need blocks.

        Null blocks pad positions before the window of `start`.
        """
        missing = []
        for index, (table, size) in enumerate(zip(lease.tables, self._sizes, strict=True)):
            have = len(table)
            last = lease.num_encoder_positions if index in self._cross else end
            need = -(-last // size)
            if need > have:
                nulls = 0
                if index in self._local:
                    first = first_visible_position(self._groups[index].spec, start) // size
                    nulls = max(0, first - have)
                missing.append((index, nulls, need - have - nulls))
        return missing

    def _per_pool(self, missing: Sequence[tuple[int, int, int]]) -> list[int]:
        needed = [0] * len(self.pools)
        for index, _, fresh in missing:
            needed[self._groups[index].pool] += fresh
        return needed

    def _has_free(self, needed: Sequence[int]) -> bool:
        return all(pool.num_free >= need for pool, need in zip(self.pools, needed, strict=True))

    def trim(self, lease: Lease, position: int) -> None:
        """Free the blocks that no token from `position` on reads."""
        for index in self._local:
            group = self._groups[index]
            table = lease.tables[index]
            low = lease.first[index]
            first = first_visible_position(group.spec, position) // group.block_size
            high = min(first, len(table))
            if high > low:
                self._free(group.pool, [block for block in table[low:high] if block])
                table[low:high] = [0] * (high - low)
                lease.first[index] = high

    def pin(self, tables: list[list[int]]) -> Lease:
        """Return a lease on held or cached blocks, per group."""
        for pool, blocks in zip(self._pool_of, tables, strict=True):
            pool.touch(blocks)
        return Lease(self._root, tables, [0] * len(tables))

    def close_lease(self, lease: Lease, *, forget: bool = False) -> None:
        """Free all blocks of the lease; it may be used again.

        `forget`: the contents are wrong, so blocks held by no other lease leave the
        prefix cache. Safe to call twice.
        """
        for index, group in enumerate(self._groups):
            pool = self._pool_of[index]
            blocks = [block for block in lease.tables[index][lease.first[index] :] if block]
            if forget:
                for block in blocks:
                    if pool.refs[block] == 1:
                        pool.remove_key(block)
            self._free(group.pool, blocks)
            lease.tables[index] = []
            lease.first[index] = 0
        lease.capacity = 0
        lease.num_published = 0
        lease.first_unverified = NEVER

    # --- steps in flight ----------------------------------------------------

    def step_issued(self, step: int) -> None:
        """Record an issued plan; blocks freed later wait for its result."""
        self.issued = step

    def step_returned(self, step: int) -> None:
        """Record the result of `step`; blocks that waited for it are free."""
        self.returned = step
        while self._deferred and self._deferred[0][0] <= step:
            _, pool, blocks = self._deferred.popleft()
            self.pools[pool].release(blocks)

    def _free(self, pool: int, blocks: list[int]) -> None:
        if blocks and self.issued > self.returned:
            self._deferred.append((self.issued, pool, blocks))
        else:
            self.pools[pool].release(blocks)
