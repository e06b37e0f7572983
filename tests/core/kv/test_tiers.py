"""KV tiers: their blocks count as hits, are listed as loads, and are published once verified."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kv import KVManager, plan_layout
from core.kv.lease import Lease
from core.model_spec.kv import FullAttention, LayerKV, SlidingWindow
from core.testing.invariants import check_kv

FULL = FullAttention(1, 8, "float32")
WINDOW = SlidingWindow(1, 8, "float32", window=6)
SIZE = 4


class Tier:
    """Stores the key of every valid block that leaves the cache."""

    def __init__(self) -> None:
        self.held: set[tuple[int, bytes]] = set()
        self.evicted: list[tuple[int, bytes, int]] = []
        self.invalidated: list[tuple[int, bytes, int]] = []
        self.ranges: list[tuple[int, int]] = []
        """(tokens published before, tokens published after) of each publication."""

    def holds(self, group: int, key: bytes) -> bool:
        return (group, key) in self.held

    def published(self, lease: Lease, tokens: Any, start: int) -> None:
        self.ranges.append((start, lease.num_published))

    def removed(self, group: int, key: bytes, block: int, valid: bool) -> None:
        if valid:
            self.held.add((group, key))
        (self.evicted if valid else self.invalidated).append((group, key, block))


def make(*specs: Any, num_blocks: int = 32) -> tuple[KVManager, Tier]:
    layers = [LayerKV(str(i), spec) for i, spec in enumerate(specs)]
    layout = plan_layout(
        layers,
        block_size=SIZE,
        memory_bytes=0,
        num_blocks=num_blocks,
        max_model_len=1,
        max_num_seqs=4,
    )
    kv = KVManager(layout, identity="x")
    tier = Tier()
    kv.add_tier(tier.holds)
    kv.add_listener(tier.published, tier.removed)
    return kv, tier


def start(kv: KVManager, tokens: list[int], **facts: Any) -> tuple[Lease, int, int]:
    """Return (lease of an admitted request, hit tokens, local hit tokens)."""
    lease = kv.open_lease(**facts)
    hit = kv.find_longest_hit(lease, tokens, len(tokens) - 1)
    assert kv.admit(lease, hit, hit.num_tokens, len(tokens), len(tokens), len(tokens))
    kv.publish(lease, tokens, len(tokens))
    return lease, hit.num_tokens, hit.num_local


def spill(kv: KVManager, blocks: int) -> None:
    """Evict cached blocks by allocating and freeing others."""
    lease, _, _ = start(kv, [9999 + i for i in range(blocks * SIZE)])
    kv.close_lease(lease, forget=True)


def test_evicted_blocks_are_reported_and_found_in_the_tier() -> None:
    kv, tier = make(FULL, num_blocks=8)
    tokens = list(range(17))
    first, _, _ = start(kv, tokens)
    blocks = list(first.tables[0][:4])
    kv.close_lease(first)
    spill(kv, 8)
    assert [(group, block) for group, _, block in tier.evicted] == [
        (0, b) for b in reversed(blocks)
    ]
    lease, found, local = start(kv, tokens)
    assert (found, local) == (16, 0)
    assert [load.key for load in lease.loads] == lease.keys[:4]
    assert [load.block for load in lease.loads] == lease.tables[0][:4]
    check_kv(kv, [lease])


@pytest.mark.parametrize("others", [{"salt": "other"}, {"extras": (("adapter", b"tenant"),)}, {}])
def test_tier_lookup_covers_salt_and_domains(others: dict[str, Any]) -> None:
    """A tier's blocks of one tenant are no hits for another tenant with the same tokens."""
    kv, tier = make(FULL, num_blocks=8)
    first, _, _ = start(kv, list(range(17)), salt="tenant")
    kv.close_lease(first)
    spill(kv, 8)
    assert len(tier.held) >= 4
    other, found, _ = start(kv, list(range(17)), **others)
    assert found == 0
    kv.close_lease(other)
    assert start(kv, list(range(17)), salt="tenant")[1] == 16


def test_cache_and_tier_together_hold_a_prefix() -> None:
    kv, tier = make(FULL)
    tokens = list(range(33))
    first, _, _ = start(kv, tokens)
    keys = list(first.keys)
    kv.close_lease(first)
    pool = kv.pools[0]
    for key in keys[2:5]:  # the middle is in the tier alone
        pool.remove_key(pool.cached_blocks(0)[key])
        tier.held.add((0, key))
    lease, found, local = start(kv, tokens)
    assert (found, local) == (32, 8)
    assert [load.key for load in lease.loads] == keys[2:5]
    check_kv(kv, [lease])


def test_windowed_groups_look_up_the_tier() -> None:
    kv, tier = make(FULL, WINDOW)
    tokens = list(range(25))
    first, _, _ = start(kv, tokens)
    keys = list(first.keys)
    kv.close_lease(first)
    for pool in kv.pools:
        pool.remove_keys_since(0)
    tier.held = {(0, key) for key in keys} | {(1, key) for key in keys[4:6]}
    lease, found, _ = start(kv, tokens)
    assert found == 24  # the window's group needs only visible blocks
    assert {load.group for load in lease.loads} == {0, 1}
    assert [load.key for load in lease.loads if load.group == 1] == keys[4:6]
    kv.close_lease(lease)
    tier.held.discard((1, keys[5]))
    for pool in kv.pools:
        pool.remove_keys_since(0)
    assert start(kv, tokens)[1] < 24


def test_loaded_blocks_are_published_when_verified() -> None:
    kv, tier = make(FULL)
    tokens = list(range(17))
    first, _, _ = start(kv, tokens)
    tier.held = {(0, key) for key in first.keys}
    kv.close_lease(first)
    for pool in kv.pools:
        pool.remove_keys_since(0)
    lease, found, _ = start(kv, tokens)
    assert (found, lease.first_unverified, lease.num_published) == (16, 0, 0)
    probe = kv.open_lease()
    assert kv.find_longest_hit(probe, tokens, 16, tiers=False).num_tokens == 0
    kv.mark_verified(lease)
    kv.publish(lease, tokens, 17)
    assert kv.find_longest_hit(probe, tokens, 16, tiers=False).num_tokens == 16
    kv.close_lease(lease)
    assert lease.first_unverified == sys.maxsize


def test_failed_load_affects_only_its_lease() -> None:
    kv, tier = make(FULL)
    other, _, _ = start(kv, [50, *range(60, 76)])
    tokens = list(range(17))
    first, _, _ = start(kv, tokens)
    tier.held = {(0, key) for key in first.keys}
    kv.close_lease(first, forget=True)
    lease, found, _ = start(kv, tokens)
    assert found == 16
    kv.invalidate(lease, tokens, 8)
    probe = kv.open_lease()
    # Earlier blocks are valid.
    assert kv.find_longest_hit(probe, tokens, 16, tiers=False).num_tokens == 8
    assert (
        kv.find_longest_hit(kv.open_lease(), [50, *range(60, 76)], 16, tiers=False).num_tokens == 16
    )
    assert not kv.shares_blocks(lease, other, 8)


@settings(max_examples=60)
@given(
    specs=st.sampled_from([(FULL,), (FULL, WINDOW), (WINDOW,)]),
    held=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12),
    cached=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12),
)
def test_hit_with_tier_matches_one_combined_cache(
    specs: tuple[Any, ...], held: list[tuple[int, int]], cached: list[tuple[int, int]]
) -> None:
    tokens = list(range(41))

    def after(in_cache: set[tuple[int, int]], in_tier: set[tuple[int, int]]) -> int:
        kv, tier = make(*specs, num_blocks=64)
        first, _, _ = start(kv, tokens)
        keys = list(first.keys)
        kv.close_lease(first)
        for group in range(len(specs)):
            pool = kv._pool_of[group]
            for link, key in enumerate(keys):
                if (group, link) not in in_cache and key in pool.cached_blocks(group):
                    pool.remove_key(pool.cached_blocks(group)[key])
        tier.held = {(group, keys[link]) for group, link in in_tier}
        lease, found, _ = start(kv, tokens)
        check_kv(kv, [lease])
        return found

    own = {entry for entry in cached if entry[0] < len(specs)}
    more = {entry for entry in held if entry[0] < len(specs)}
    assert after(own, more) == after(own | more, set())


@pytest.mark.parametrize("num_blocks", [4, 5])
def test_hit_blocks_are_not_evicted_for_loads(num_blocks: int) -> None:
    kv, tier = make(FULL, num_blocks=num_blocks)
    tokens = list(range(17))
    first, _, _ = start(kv, tokens[:9])
    keys = list(first.keys)
    tables = list(first.tables[0])
    kv.close_lease(first)
    probe = kv.open_lease()
    kv._extend_keys(probe, tokens, 16)
    tier.held = {(0, key) for key in probe.keys[2:4]}
    lease = kv.open_lease()
    hit = kv.find_longest_hit(lease, tokens, 16)
    assert (hit.num_tokens, hit.num_local) == (16, 8)
    admitted = kv.admit(lease, hit, 16, 17, 17, 17)
    assert admitted == (num_blocks == 5)
    if admitted:
        assert lease.tables[0][:2] == tables[:2]
        assert keys[:2] == lease.keys[:2]
        check_kv(kv, [lease])


def test_listeners_see_every_publication_and_removal() -> None:
    kv, tier = make(FULL, num_blocks=8)
    tokens = list(range(17))
    lease, _, _ = start(kv, tokens)
    assert tier.ranges == [(0, 16)]
    kv.publish(lease, tokens, 17)
    assert len(tier.ranges) == 1  # nothing more is full
    kv.clear_prefix_cache(contents_valid=False)
    assert {(key, block) for _, key, block in tier.invalidated} == set(
        zip(lease.keys, lease.tables[0], strict=False)
    )
    kv.close_lease(lease)
    start(kv, tokens)
    kv.clear_prefix_cache(contents_valid=True)
    assert len(tier.evicted) == 4
    assert {block for _, _, block in tier.evicted}.isdisjoint({0})


def test_pinned_blocks_stay_until_the_lease_is_closed() -> None:
    kv, _ = make(FULL, num_blocks=8)
    tokens = list(range(17))
    lease, _, _ = start(kv, tokens)
    table = list(lease.tables[0][:2])
    held = kv.pin([table])
    kv.close_lease(lease)
    spill(kv, 6)
    assert [kv.pools[0].cached_blocks(0).get(key) for key in lease.keys[:2]] == table
    check_kv(kv, [held])
    kv.close_lease(held)
    check_kv(kv, [])
    spill(kv, 8)
    assert not kv.pools[0].cached_blocks(0)
