"""The prefix cache over all KV groups: lookup, publication and invalidation.

Knows tokens, keys and step numbers; knows no request, no budget and no policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import filterfalse
from typing import Final

from core.kv.lease import NEVER, NO_HIT, Hit, Lease
from core.kv.pool import BlockPool, KeyRemoved
from core.kv.prefix import Tokens, chain_root, extend_chain, span_extra_keys
from core.kv.windows import first_visible_position
from core.model_spec.kv import CrossAttention, FullAttention, IndexKeys, KVLayout, LatentKeys
from core.step import Span

Domains = Sequence[tuple[str, bytes]]
TierHolds = Callable[[int, bytes], bool]
"""Returns whether a KV tier holds the block of (group, key)."""
Published = Callable[[Lease, Tokens, int], None]
"""Takes (lease, known tokens, number of leading tokens published before)."""


class PrefixCache:
    """Blocks that requests with equal prefixes share.

    A block is published when it is planned with known tokens: steps run in order, and
    within a step the writer of a block comes before its readers.
    """

    def __init__(
        self, layout: KVLayout, *, prefix_caching: bool = True, identity: str = ""
    ) -> None:
        self.layout: Final = layout
        self.identity: Final = identity
        groups = tuple(layout.groups)
        self._groups: Final = groups
        cross = (i for i, g in enumerate(groups) if isinstance(g.spec, CrossAttention))
        self._cross: Final = frozenset(cross)
        # Keys and values may depend on an encoder's input that prefix keys lack.
        is_keyed = all(getattr(group.spec, "input_in_keys", True) for group in groups)
        self.prefix_caching: Final = prefix_caching and bool(groups) and is_keyed
        self._root: Final = chain_root(identity, "", ())
        """Chain root of requests without salt and domains."""
        self.pools: Final = tuple(
            BlockPool(pool.num_blocks, [i for i, g in enumerate(groups) if g.pool == index])
            for index, pool in enumerate(layout.pools)
        )
        """The block pools; read-only for callers."""
        self._pool_of: Final = tuple(self.pools[g.pool] for g in groups)
        self._sizes: Final = tuple(g.block_size for g in groups)
        own = (each for each in enumerate(self._sizes) if each[0] not in self._cross)
        self._shared: Final = tuple(own)
        """Index and block size of the groups with shared blocks: all but cross groups."""
        self._align: Final = math.lcm(*self._sizes)
        whole_context = (FullAttention, LatentKeys, IndexKeys, CrossAttention)
        local = (i for i, g in enumerate(groups) if type(g.spec) not in whole_context)
        self._local: Final = tuple(local)
        """Groups with a moving window: they free blocks while a
        request runs.
        """
        self._tiers: list[TierHolds] = []
        self._on_published: list[Published] = []
        self.issued = 0
        """Last step with an issued plan."""

    # --- lookup -------------------------------------------------------------

    def open_lease(
        self,
        salt: str = "",
        extras: Domains = (),
        spans: Sequence[Span] = (),
        num_encoder_positions: int = 0,
    ) -> Lease:
        """Return an empty lease; `salt`, `extras` and `spans` enter its prefix keys."""
        root = chain_root(self.identity, salt, extras) if salt or extras else self._root
        lease = Lease(root, [[] for _ in self._sizes], [0] * len(self._sizes))
        lease.num_encoder_positions = num_encoder_positions
        if spans:
            lease.extra_keys = span_extra_keys(spans, self.layout.hash_block_size)
        return lease

    def find_longest_hit(
        self, lease: Lease, tokens: Tokens, max_tokens: int, *, tiers: bool = True
    ) -> Hit:
        """Return the longest cached prefix of up to `max_tokens` tokens;
        allocates nothing.

        A fixpoint over the groups: each shortens the hit until every group has the
        blocks that the next token reads, in its pool or, with `tiers`, in a KV tier.
        """
        length = max_tokens - max_tokens % self._align
        if not self.prefix_caching or not length:
            return NO_HIT
        self._extend_keys(lease, tokens, length)
        num_groups = len(self._groups)
        lookups = [self._has_key(i, self._tiers if tiers else ()) for i in range(num_groups)]
        index = 0
        agreed = 0
        while length and agreed < num_groups:
            before = length
            length = self._longest_in_group(index, lease.keys, length, lookups[index])
            agreed = agreed + 1 if length == before else 1
            index = (index + 1) % num_groups
        return self._hit(lease.keys, length) if length else NO_HIT

    def _hit(self, keys: Sequence[bytes], length: int) -> Hit:
        num_local = length
        blocks = []
        for index, size in enumerate(self._sizes):
            found = [] if index in self._cross else self._visible_blocks(index, keys, length)
            blocks.append(found)
            if 0 in found:
                first_missing = length // size - len(found) + found.index(0)
                num_local = min(num_local, first_missing * size)
        return Hit(length, blocks, num_local)

    def _has_key(self, index: int, tiers: Sequence[TierHolds]) -> Callable[[bytes], bool]:
        """Return a predicate: whether a group's key is in its pool or in one
        of `tiers`.
        """
        cached = self._pool_of[index].cached_blocks(index)
        if not tiers:
            return cached.__contains__
        return lambda key: key in cached or any(holds(index, key) for holds in tiers)

    def _longest_in_group(
        self, index: int, keys: Sequence[bytes], length: int, has_key: Callable[[bytes], bool]
    ) -> int:
        """Return the longest aligned prefix up to `length` with keys of all visible blocks."""
        spec = self._groups[index].spec
        size = self._sizes[index]
        links = self._links_per_block(index)
        align = self._align
        if index not in self._local:
            needed = keys[links - 1 : length // size * links : links]
            missing = next(filterfalse(has_key, needed), None)
            if missing is None or index in self._cross:
                return length
            return needed.index(missing) * size // align * align
        block = length // size - 1
        low = first_visible_position(spec, length) // size
        while block >= low:
            if not has_key(keys[(block + 1) * links - 1]):
                # Every longer prefix with this block in its window misses too; try
                # shorter ones.
                length = block * size // align * align
                block = min(block, length // size)
                low = first_visible_position(spec, length) // size
            block -= 1
        return length

    def _visible_blocks(self, index: int, keys: Sequence[bytes], length: int) -> list[int]:
        links = self._links_per_block(index)
        size = self._sizes[index]
        cached = self._pool_of[index].cached_blocks(index)
        low = first_visible_position(self._groups[index].spec, length) // size
        visible = keys[(low + 1) * links - 1 : length // size * links : links]
        return [cached.get(key, 0) for key in visible]

    def _links_per_block(self, index: int) -> int:
        return self._sizes[index] // self.layout.hash_block_size

    def _extend_keys(self, lease: Lease, tokens: Tokens, end: int) -> None:
        size = self.layout.hash_block_size
        extend_chain(lease.keys, lease.root, tokens, size, end // size, lease.extra_keys)

    # --- publication --------------------------------------------------------

    def publish(self, lease: Lease, tokens: Tokens, end: int) -> None:
        """Add every full, verified block below `end` to the prefix cache.

        The tokens below `end` are known and planned.
        """
        smallest = self.layout.hash_block_size
        end = min(end, lease.first_unverified)
        full_end = end - end % smallest
        start = lease.num_published
        if not self.prefix_caching or full_end <= start:
            return
        self._extend_keys(lease, tokens, end)
        lease.published_since = min(lease.published_since, self.issued)
        keys = lease.keys
        for index, size in self._shared:
            links = size // smallest
            low = start // size
            high = end // size
            new_keys = keys[(low + 1) * links - 1 : high * links : links]
            new_blocks = lease.tables[index][low:high]
            self._pool_of[index].add_keys(index, new_keys, new_blocks, self.issued)
        lease.num_published = full_end
        for published in self._on_published:
            published(lease, tokens, start)

    def mark_verified(self, lease: Lease) -> None:
        """Confirm the lease's loaded blocks; they are published from now on."""
        lease.first_unverified = NEVER

    # --- KV tiers -----------------------------------------------------------

    def add_tier(self, holds: TierHolds) -> None:
        """Add a KV tier: keys for which `holds(group, key)` is true count as
        hits.

        `admit` allocates blocks for them and lists them as `loads`. The tier must keep
        a block that it reported until then, despite evictions in between.
        """
        self._tiers.append(holds)

    def add_listener(self, published: Published, removed: KeyRemoved) -> None:
        """Call `published` for blocks that enter the prefix cache, `removed`
        for those that leave.

        Published blocks are valid once the steps in flight have run. An eviction is
        reported before the plan that overwrites the block; an invalidation is reported
        at once.
        """
        self._on_published.append(published)
        for pool in self.pools:
            pool.on_removed.append(removed)

    # --- invalidation -------------------------------------------------------

    def clear_prefix_cache(self, *, contents_valid: bool) -> None:
        """Remove every block from the prefix cache, in use or not.

        `contents_valid` is false after a failed step: its writes are unknown.
        """
        for pool in self.pools:
            pool.remove_keys_since(0, valid=contents_valid)

    def invalidate(self, lease: Lease, computed: Tokens, position: int) -> None:
        """Remove every cached block that depends on what `lease` held at or
        after `position`.

        Blocks computed from these were published later, so all later ones are removed.
        If the wrong blocks were prefix hits themselves, their age is unknown and all
        blocks are removed. What the lease holds of `computed` before `position` is
        published again. Loaded blocks that are not yet published affect this lease
        only.
        """
        if position >= lease.first_unverified:
            lease.first_unverified = position
        else:
            stamp = lease.published_since if position >= lease.num_hit else 0
            for pool in self.pools:
                pool.remove_keys_since(stamp)
            lease.num_published = 0
        if lease.capacity:
            self.publish(lease, computed, min(position, len(computed)))

    def shares_blocks(self, lease: Lease, other: Lease, position: int) -> bool:
        """Return whether `other` may hold blocks of `lease` at `position`.

        Their tokens are then equal up to there.
        """
        if lease is other:
            return True
        if position >= lease.first_unverified:
            return False
        link = position // self.layout.hash_block_size
        key = lease.keys[link : link + 1]
        return bool(key) and key == other.keys[link : link + 1]
