"""Which blocks each request holds, per group: allocation, prefix hits, windows, and the wait for
steps in flight.

Knows tokens, positions and step numbers; knows no request, no budget and no policy.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from operator import mul
from typing import Final, NamedTuple

from core.kv.layout import NULL_BLOCKS
from core.kv.pool import BlockPool, Forgotten
from core.kv.prefix import Tokens, chain_root, extend_chain, span_marks
from core.kv.reach import first_needed, peak_blocks
from core.model_spec.kv import CrossAttention, FullAttention, KVLayout, LatentKeys, RecurrentState
from core.step import Span

Appended = list[tuple[int, list[int]]]
"""(group, block ids appended to its table), groups without any left out."""

Domains = Sequence[tuple[str, bytes]]
Holds = Callable[[int, bytes], bool]
"""Whether a tier holds what a group has cached under a key."""
Offered = Callable[["Lease", Tokens, int], None]
"""Takes a lease, the tokens known of it, and how many of the leading ones that it has offered were
offered before.
"""
PLENTY_BLOCKS: Final = 256


class Load(NamedTuple):
    """A block that was taken for what a tier holds under a key, and is to be filled by it."""

    group: int
    key: bytes
    block: int


@dataclass(frozen=True, slots=True)
class Hit:
    """Tokens found in the prefix cache or a tier behind it, and the blocks that hold what the next
    token reads of them.
    """

    num_tokens: int = 0
    blocks: Sequence[Sequence[int]] = ()
    """Per group, in order, those from the first still needed on; 0 for what only a tier holds."""
    num_local: int = 0
    """Leading tokens before the first that a tier holds alone."""

    @property
    def loads(self) -> bool:
        """Say whether anything must be brought from a tier."""
        return self.num_local < self.num_tokens


NOTHING: Final = Hit()


@dataclass(slots=True, eq=False)
class Lease:
    """What one request holds. Made by `KVManager.open`, changed by the manager only."""

    root: bytes
    tables: list[list[int]]
    """Block ids per group by position; 0 where the window has passed or nothing was needed."""
    first: list[int]
    """Per group, index of the first block still held."""
    capacity: int = 0
    """Tokens that have a place in every group."""
    keys: list[bytes] = field(default_factory=list)
    marks: Mapping[int, bytes] = field(default_factory=dict)
    """What keys cover besides tokens (see `core.kv.prefix`)."""
    offered: int = 0
    """Leading tokens whose blocks were offered to the prefix cache."""
    beside: int = 0
    """Positions beside its tokens, which have a place in the cross groups from its admission to its
    end.
    """
    num_found: int = 0
    """Leading tokens that were found there when it was last admitted."""
    offered_since: int = sys.maxsize
    """Last step issued before it first offered blocks since it was last admitted."""
    unsure: int = sys.maxsize
    """Tokens from here on were brought from elsewhere, or come of those, and nobody knows yet
    whether they are right:
    they are not offered."""
    loads: list[Load] = field(default_factory=list)
    """What tiers have to bring for its last admission."""


class KVManager:
    """The KV cache of one worker (or of ranks that mirror each other), as the scheduler sees it.

    Blocks given back while a step is in flight are reused only after the last step issued so far
    has returned: the scheduler says `step_issued` and `step_returned`. Keys are offered to the
    prefix cache when a block is planned with known tokens: steps run in order, and within a step a
    writer stands before readers.
    """

    def __init__(
        self, layout: KVLayout, *, prefix_caching: bool = True, identity: str = ""
    ) -> None:
        self.layout: Final = layout
        self.identity: Final = identity
        self._groups: Final = tuple(layout.groups)
        self._cross: Final = frozenset(
            i for i, g in enumerate(layout.groups) if isinstance(g.spec, CrossAttention)
        )
        # What a decoder caches depends on what its encoder read, and a prompt of a few tokens is
        # not worth finding.
        self.prefix_caching: Final = prefix_caching and bool(layout.groups) and not self._cross
        self._root: Final = chain_root(identity, "", ())
        """Of all who say nothing of themselves."""
        self.pools: Final = tuple(
            BlockPool(pool.num_blocks, [i for i, g in enumerate(layout.groups) if g.pool == index])
            for index, pool in enumerate(layout.pools)
        )
        """Who holds which blocks; to be read only."""
        self._pool_of: Final = tuple(self.pools[g.pool] for g in layout.groups)
        self._sizes: Final = tuple(g.block_size for g in layout.groups)
        self._room: Final = tuple(
            sys.maxsize if i in self._cross else size for i, size in enumerate(self._sizes)
        )
        """Tokens that a block of each group makes room for."""
        self._align: Final = math.lcm(*self._sizes)
        growing = (FullAttention, LatentKeys, CrossAttention)
        self._local: Final = tuple(
            i for i, g in enumerate(layout.groups) if type(g.spec) not in growing
        )
        spare = [g.spec.spare for g in layout.groups if isinstance(g.spec, RecurrentState)]
        self.most_guesses: Final = min(spare, default=sys.maxsize)
        """Of one step: a state can be taken back to where it was before a wrong one as far as there
        are spare ones.
        """
        self._tiers: list[Holds] = []
        self._offered: list[Offered] = []
        self.issued = 0
        """Last step whose plan left."""
        self.returned = 0
        """Last step whose result is in."""
        self._deferred: deque[tuple[int, int, list[int]]] = (
            deque()
        )  # (step, pool, blocks given back after it)

    # --- what fits --------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """Share of blocks held by requests or by steps in flight, 0 to 1."""
        total = sum(pool.num_blocks - NULL_BLOCKS for pool in self.pools)
        return 1 - sum(pool.num_free for pool in self.pools) / total if total else 0.0

    @property
    def is_windowed(self) -> bool:
        """Say whether any group gives blocks back while its request runs."""
        return bool(self._local)

    @property
    def is_plentiful(self) -> bool:
        """Say whether so much of every pool is free that nobody misses a block taken a little
        early.
        """
        return all(pool.num_free >= max(PLENTY_BLOCKS, pool.num_blocks // 4) for pool in self.pools)

    def fits_empty(self, num_tokens: int, max_step_tokens: int) -> bool:
        """Say whether one sequence of `num_tokens` fits when nothing else is in the cache."""
        needs = [
            peak_blocks(g.spec, g.block_size, num_tokens, max_step_tokens) for g in self._groups
        ]
        missing = [(index, 0, need) for index, need in enumerate(needs)]
        wanted = zip(self._per_pool(missing), self.pools, strict=True)
        return all(want <= pool.num_blocks - NULL_BLOCKS for want, pool in wanted)

    def longest(self, most: int, max_step_tokens: int) -> int:
        """Return the longest sequence up to `most` tokens that fits an empty cache."""
        low = 0
        while low < most:
            middle = (low + most + 1) // 2
            low, most = (
                (middle, most) if self.fits_empty(middle, max_step_tokens) else (low, middle - 1)
            )
        return low

    def will_fit(self, lease: Lease, start: int, end: int) -> bool:
        """Say whether `extend` will succeed once the steps in flight have returned."""
        wanted = self._per_pool(self._missing(lease, start, end))
        for _, pool, blocks in self._deferred:
            refs = self.pools[pool].refs
            wanted[pool] -= sum(refs[block] == 1 for block in blocks)
        return self._enough(wanted)

    # --- a request's blocks -----------------------------------------------------------------------

    def open(
        self, salt: str = "", extras: Domains = (), spans: Sequence[Span] = (), beside: int = 0
    ) -> Lease:
        """Return an empty lease; cached keys and values depend on the (domain, content hash) of
        `extras` and `spans`.
        """
        root = chain_root(self.identity, salt, extras) if salt or extras else self._root
        marks = span_marks(spans, self.layout.hash_block_size) if spans else {}
        return Lease(
            root, [[] for _ in self._sizes], [0] * len(self._sizes), marks=marks, beside=beside
        )

    def find(self, lease: Lease, tokens: Tokens, most: int, *, tiers: bool = True) -> Hit:
        """Return the longest prefix of at most `most` tokens that every group can serve; changes
        nothing held.

        The fixpoint over groups: each in turn shortens the hit until all hold what the next token
        would read, in the cache or (unless `tiers` is false) in a tier.
        """
        length = most - most % self._align
        if not self.prefix_caching or not length:
            return NOTHING
        self._hash(lease, tokens, length)
        index = agreed = 0
        held = [self._held(i, self._tiers if tiers else ()) for i in range(len(self._groups))]
        while length and agreed < len(self._groups):
            before = length
            length = self._longest_hit(index, lease.keys, length, held[index])
            agreed = agreed + 1 if length == before else 1
            index = (index + 1) % len(self._groups)
        if not length:
            return NOTHING
        blocks = []
        local = length
        for index, size in enumerate(self._sizes):
            found = self._hit_blocks(index, lease.keys, length)
            blocks.append(found)
            if 0 in found:
                local = min(local, (length // size - len(found) + found.index(0)) * size)
        return Hit(length, blocks, local)

    def _held(self, index: int, tiers: Sequence[Holds]) -> Callable[[bytes], bool]:
        """Return what says whether a key of a group can be had, here or in one of these tiers."""
        found = self._pool_of[index].find(index)
        return (
            (lambda key: key in found or any(holds(index, key) for holds in tiers))
            if tiers
            else found.__contains__
        )

    def _longest_hit(
        self, index: int, keys: Sequence[bytes], length: int, held: Callable[[bytes], bool]
    ) -> int:
        """Return the longest aligned prefix up to `length` whose needed blocks are all `held` in
        one group.
        """
        group = self._groups[index]
        links = self._links(index)
        size = group.block_size
        if index not in self._local:
            wanted = keys[links - 1 : length // size * links : links]
            missing = next(filterfalse(held, wanted), None)
            return (
                length
                if missing is None
                else wanted.index(missing) * size // self._align * self._align
            )
        block = length // size - 1
        low = first_needed(group.spec, length) // size
        while block >= low:
            if not held(keys[(block + 1) * links - 1]):
                # Every longer prefix whose window reaches this block fails too; what lies before is
                # still open.
                length = block * size // self._align * self._align
                block = min(block, length // size)
                low = first_needed(group.spec, length) // size
            block -= 1
        return length

    def _hit_blocks(self, index: int, keys: Sequence[bytes], length: int) -> list[int]:
        group = self._groups[index]
        links = self._links(index)
        found = self._pool_of[index].find(index)
        low = first_needed(group.spec, length) // group.block_size
        return [
            found.get(key, 0)
            for key in keys[(low + 1) * links - 1 : length // group.block_size * links : links]
        ]

    def _links(self, index: int) -> int:
        return self._groups[index].block_size // self.layout.hash_block_size

    def admit(
        self, lease: Lease, hit: Hit, start: int, end: int, reserve: int, max_step_tokens: int
    ) -> bool:
        """Take the blocks of `hit`, then room for the tokens start..end; False, and nothing taken,
        if short.

        Room for `reserve` tokens, computed in steps of at most `max_step_tokens`, must be free
        though not all of it is taken now: who starts should not soon have to stop again.
        """
        wanted = [0] * len(self.pools)
        found = []
        for index, group in enumerate(self._groups):
            size = group.block_size
            blocks = hit.blocks[index] if hit.blocks else ()
            needed = first_needed(group.spec, start) // size
            ahead = hit.num_tokens // size
            blocks = blocks[
                max(0, needed - ahead + len(blocks)) :
            ]  # without what lies before the window of `start`
            found.append(blocks)
            low = max(ahead, needed)
            revived = 0
            if blocks:  # one for each that a tier fills, too: refs[0] is 0
                revived = [self._pool_of[index].refs[block] for block in blocks].count(0)
            # Blocks that others hold too are not free again when the window has passed them.
            most = peak_blocks(group.spec, size, reserve, max_step_tokens) - revived
            stop, room = (lease.beside, lease.beside) if index in self._cross else (end, reserve)
            fresh = max(-(-stop // size) - low, min(-(-room // size) - low, most))
            wanted[group.pool] += fresh + revived
        if not self._enough(wanted):
            return False
        lease.loads = []
        if hit.num_tokens:
            # What is found is held first, or it could be taken for what is loaded.
            for index, blocks in enumerate(found):
                self._pool_of[index].touch(filter(None, blocks))
            for index, (blocks, size) in enumerate(zip(found, self._sizes, strict=True)):
                first = hit.num_tokens // size - len(blocks)
                links = self._links(index)
                taken = iter(self._pool_of[index].take(sum(not block for block in blocks)))
                table = [block or next(taken) for block in blocks]
                for place, block in enumerate(table, first):
                    if not blocks[place - first]:
                        lease.loads.append(Load(index, lease.keys[(place + 1) * links - 1], block))
                lease.first[index], lease.tables[index] = first, [0] * first + table
        lease.offered = lease.num_found = hit.num_local - hit.num_local % self._align
        lease.offered_since = sys.maxsize
        lease.unsure = hit.num_local if hit.loads else sys.maxsize
        self.extend(lease, start, end)
        return True

    def extend(self, lease: Lease, start: int, end: int) -> Appended | None:
        """Make room for the tokens start..end and return what was appended; None, and nothing
        taken, if short.
        """
        missing = self._missing(lease, start, end)
        if len(missing) == 1:
            index, _, fresh = missing[0]
            if fresh > self._pool_of[index].num_free:
                return None
        elif missing and not self._enough(self._per_pool(missing)):
            return None
        appended: Appended = []
        for index, nulls, fresh in missing:
            table = lease.tables[index]
            blocks = self._pool_of[index].take(fresh)
            if nulls:
                lease.first[index] = len(table) + nulls
                blocks = [0] * nulls + blocks
            table += blocks
            appended.append((index, blocks))
        lease.capacity = min(map(mul, map(len, lease.tables), self._room), default=sys.maxsize)
        return appended

    def _missing(self, lease: Lease, start: int, end: int) -> list[tuple[int, int, int]]:
        """For each group that lacks any: (group, entries to pad that no later token reads, blocks
        to take).
        """
        missing = []
        for index, (table, size) in enumerate(zip(lease.tables, self._sizes, strict=True)):
            have = len(table)
            want = -(-(lease.beside if index in self._cross else end) // size)
            if want > have:
                nulls = 0
                if index in self._local:
                    nulls = max(0, first_needed(self._groups[index].spec, start) // size - have)
                missing.append((index, nulls, want - have - nulls))
        return missing

    def _per_pool(self, missing: Sequence[tuple[int, int, int]]) -> list[int]:
        wanted = [0] * len(self.pools)
        for index, _, fresh in missing:
            wanted[self._groups[index].pool] += fresh
        return wanted

    def _enough(self, wanted: Sequence[int]) -> bool:
        return all(pool.num_free >= want for pool, want in zip(self.pools, wanted, strict=True))

    def trim(self, lease: Lease, position: int) -> None:
        """Give back the blocks that no token from `position` on reads."""
        for index in self._local:
            group = self._groups[index]
            table = lease.tables[index]
            low = lease.first[index]
            high = min(first_needed(group.spec, position) // group.block_size, len(table))
            if high > low:
                self._give(group.pool, [block for block in table[low:high] if block])
                table[low:high] = [0] * (high - low)
                lease.first[index] = high

    def commit(self, lease: Lease, tokens: Tokens, end: int) -> None:
        """Offer every full block below `end` to the prefix cache; its tokens are known and planned."""
        smallest = self.layout.hash_block_size
        end = min(end, lease.unsure)
        if not self.prefix_caching or end - end % smallest <= lease.offered:
            return
        self._hash(lease, tokens, end)
        lease.offered_since = min(lease.offered_since, self.issued)
        keys = lease.keys
        for index, size in enumerate(self._sizes):
            links = size // smallest
            low = lease.offered // size
            high = end // size
            found = keys[(low + 1) * links - 1 : high * links : links]
            self._pool_of[index].remember(index, found, lease.tables[index][low:high], self.issued)
        start = lease.offered
        lease.offered = end - end % smallest
        for offered in self._offered:
            offered(lease, tokens, start)

    def trust(self, lease: Lease) -> None:
        """What was brought for it is known to be right: it is offered from now on."""
        lease.unsure = sys.maxsize

    def _hash(self, lease: Lease, tokens: Tokens, end: int) -> None:
        size = self.layout.hash_block_size
        extend_chain(lease.keys, lease.root, tokens, size, end // size, lease.marks)

    def close(self, lease: Lease, *, forget: bool = False) -> None:
        """Give back everything; the lease is empty afterwards and may be used again. Safe to call
        twice.

        `forget`: the contents cannot be trusted, so blocks nobody else holds can no longer be
        found.
        """
        for index, group in enumerate(self._groups):
            pool = self._pool_of[index]
            blocks = [block for block in lease.tables[index][lease.first[index] :] if block]
            if forget:
                for block in blocks:
                    if pool.refs[block] == 1:
                        pool.forget(block)
            self._give(group.pool, blocks)
            lease.tables[index] = []
            lease.first[index] = 0
        lease.capacity = lease.offered = 0
        lease.unsure = sys.maxsize

    # --- steps in flight --------------------------------------------------------------------------

    def step_issued(self, step: int) -> None:
        """A plan left; blocks given back from now on wait for it."""
        self.issued = step

    def step_returned(self, step: int) -> None:
        """The result of `step` is in; blocks that waited for it are free."""
        self.returned = step
        while self._deferred and self._deferred[0][0] <= step:
            _, pool, blocks = self._deferred.popleft()
            self.pools[pool].give(blocks)

    def _give(self, pool: int, blocks: list[int]) -> None:
        if blocks and self.issued > self.returned:
            self._deferred.append((self.issued, pool, blocks))
        else:
            self.pools[pool].give(blocks)

    # --- tiers behind the cache -------------------------------------------------------------------

    def add_tier(self, holds: Holds) -> None:
        """Count what `holds(group, key)` says yes to as found: `admit` takes blocks for it and
        lists them as `loads`.

        What it said yes to must still be there when `loads` are listed, whatever is evicted
        between.
        """
        self._tiers.append(holds)

    def watch(self, offered: Offered, forgotten: Forgotten) -> None:
        """Be told of what can be found from now on, once a step in flight has computed it, and of
        what no longer can.

        What is evicted is told before the plan that writes over it is made; what is not to be
        trusted any more, at once.
        """
        self._offered.append(offered)
        for pool in self.pools:
            pool.forgotten.append(forgotten)

    def hold(self, tables: list[list[int]]) -> Lease:
        """Return a lease on blocks, per group, that somebody holds or that can be found: they stay
        until it is closed.
        """
        for pool, blocks in zip(self._pool_of, tables, strict=True):
            pool.touch(blocks)
        return Lease(self._root, tables, [0] * len(tables))

    # --- the prefix cache as a whole --------------------------------------------------------------

    def forget_all(self, *, right: bool) -> None:
        """Forget every cached prefix, in use or not.

        Not `right`: a step failed, and nobody knows what it wrote.
        """
        for pool in self.pools:
            pool.forget_since(0, right=right)

    def distrust(self, lease: Lease, computed: Tokens, position: int) -> None:
        """Forget every cached prefix that may contain or come from what `lease` has held at or
        after `position`.

        Whatever was computed from these blocks was offered after they were; where they were found
        in the cache themselves, nobody knows since when they are wrong, and everything is
        forgotten. What the lease holds of `computed` before `position` is offered again. What was
        brought and not offered yet is nobody else's trouble.
        """
        if position >= lease.unsure:
            lease.unsure = position
        else:
            for pool in self.pools:
                pool.forget_since(lease.offered_since if position >= lease.num_found else 0)
            lease.offered = 0
        if lease.capacity:
            self.commit(lease, computed, min(position, len(computed)))

    def shares(self, lease: Lease, other: Lease, position: int) -> bool:
        """Say whether what `other` holds at `position` may come from `lease`: then their tokens are
        equal so far.
        """
        link = slice(
            position // self.layout.hash_block_size, position // self.layout.hash_block_size + 1
        )
        return lease is other or (
            position < lease.unsure and lease.keys[link] == other.keys[link] != []
        )

    def check(self, leases: Iterable[Lease]) -> None:
        """Assert that the blocks of exactly these leases, and of steps in flight, are referenced."""
        expected = [[0] * pool.num_blocks for pool in self.pools]
        for lease in leases:
            for group, table, low in zip(self._groups, lease.tables, lease.first, strict=True):
                assert not any(table[:low]), "a block outside the window is still held"
                held = [block for block in table[low:] if block]
                assert len(held) == len(table) - low, "a null block inside the window"
                assert len(set(held)) == len(held), "a block stands twice in one table"
                for block in held:
                    expected[group.pool][block] += 1
        for _, pool, blocks in self._deferred:
            for block in blocks:
                expected[pool][block] += 1
        for pool_blocks, refs in zip(self.pools, expected, strict=True):
            pool_blocks.check(refs)
