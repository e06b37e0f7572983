"""One index, many tiers: what a tier holds counts as found, is listed to be loaded, and is offered
once it is right.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kv import KVManager, plan_layout
from core.kv.manager import Lease
from core.model_spec.kv import FullAttention, LayerKV, SlidingWindow

FULL = FullAttention(1, 8, "float32")
WINDOW = SlidingWindow(1, 8, "float32", window=6)
SIZE = 4


class Tier:
    """Keeps every key it is told of."""

    def __init__(self) -> None:
        self.held: set[tuple[int, bytes]] = set()
        self.evicted: list[tuple[int, bytes, int]] = []
        self.distrusted: list[tuple[int, bytes, int]] = []
        self.ranges: list[tuple[int, int]] = []
        """Of each offer: leading tokens offered before it, and behind it."""

    def holds(self, group: int, key: bytes) -> bool:
        return (group, key) in self.held

    def offered(self, lease: Lease, tokens: Any, start: int) -> None:
        self.ranges.append((start, lease.offered))

    def forgotten(self, group: int, key: bytes, block: int, right: bool) -> None:
        if right:
            self.held.add((group, key))
        (self.evicted if right else self.distrusted).append((group, key, block))


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
    kv.watch(tier.offered, tier.forgotten)
    return kv, tier


def start(kv: KVManager, tokens: list[int], **facts: Any) -> tuple[Lease, int, int]:
    """Return the lease of an admitted request, the tokens found for it, and those of them that the
    cache itself has.
    """
    lease = kv.open(**facts)
    hit = kv.find(lease, tokens, len(tokens) - 1)
    assert kv.admit(lease, hit, hit.num_tokens, len(tokens), len(tokens), len(tokens))
    kv.commit(lease, tokens, len(tokens))
    return lease, hit.num_tokens, hit.num_local


def spill(kv: KVManager, blocks: int) -> None:
    """Take so many blocks for something else and give them back."""
    lease, _, _ = start(kv, [9999 + i for i in range(blocks * SIZE)])
    kv.close(lease, forget=True)


def test_what_is_evicted_is_told_and_found_again_in_the_tier() -> None:
    kv, tier = make(FULL, num_blocks=8)
    tokens = list(range(17))
    first, _, _ = start(kv, tokens)
    blocks = list(first.tables[0][:4])
    kv.close(first)
    spill(kv, 8)
    assert [(group, block) for group, _, block in tier.evicted] == [
        (0, b) for b in reversed(blocks)
    ]
    lease, found, local = start(kv, tokens)
    assert (found, local) == (16, 0)
    assert [load.key for load in lease.loads] == lease.keys[:4]
    assert [load.block for load in lease.loads] == lease.tables[0][:4]
    kv.check([lease])


@pytest.mark.parametrize("others", [{"salt": "other"}, {"extras": (("adapter", b"tenant"),)}, {}])
def test_a_tier_is_asked_by_the_whole_identity(others: dict[str, Any]) -> None:
    """What the tier keeps of one tenant's prompt is not found by another who sends the same tokens."""
    kv, tier = make(FULL, num_blocks=8)
    first, _, _ = start(kv, list(range(17)), salt="tenant")
    kv.close(first)
    spill(kv, 8)
    assert len(tier.held) >= 4
    other, found, _ = start(kv, list(range(17)), **others)
    assert found == 0
    kv.close(other)
    assert start(kv, list(range(17)), salt="tenant")[1] == 16


def test_the_cache_and_the_tier_together_hold_a_prefix() -> None:
    kv, tier = make(FULL)
    tokens = list(range(33))
    first, _, _ = start(kv, tokens)
    keys = list(first.keys)
    kv.close(first)
    pool = kv.pools[0]
    for key in keys[2:5]:  # the middle is in the tier alone
        pool.forget(pool.find(0)[key])
        tier.held.add((0, key))
    lease, found, local = start(kv, tokens)
    assert (found, local) == (32, 8)
    assert [load.key for load in lease.loads] == keys[2:5]
    kv.check([lease])


def test_windows_ask_the_tier_inside_the_fixpoint() -> None:
    kv, tier = make(FULL, WINDOW)
    tokens = list(range(25))
    first, _, _ = start(kv, tokens)
    keys = list(first.keys)
    kv.close(first)
    for pool in kv.pools:
        pool.forget_since(0)
    tier.held = {(0, key) for key in keys} | {(1, key) for key in keys[4:6]}
    lease, found, _ = start(kv, tokens)
    assert found == 24  # of the window's group only what the next token reads is wanted
    assert {load.group for load in lease.loads} == {0, 1}
    assert [load.key for load in lease.loads if load.group == 1] == keys[4:6]
    kv.close(lease)
    tier.held.discard((1, keys[5]))
    for pool in kv.pools:
        pool.forget_since(0)
    assert start(kv, tokens)[1] < 24


def test_what_is_loaded_is_offered_when_it_is_known_to_be_right() -> None:
    kv, tier = make(FULL)
    tokens = list(range(17))
    first, _, _ = start(kv, tokens)
    tier.held = {(0, key) for key in first.keys}
    kv.close(first)
    for pool in kv.pools:
        pool.forget_since(0)
    lease, found, _ = start(kv, tokens)
    assert (found, lease.unsure, lease.offered) == (16, 0, 0)
    probe = kv.open()
    assert kv.find(probe, tokens, 16, tiers=False).num_tokens == 0
    kv.trust(lease)
    kv.commit(lease, tokens, 17)
    assert kv.find(probe, tokens, 16, tiers=False).num_tokens == 16
    kv.close(lease)
    assert lease.unsure == sys.maxsize


def test_a_load_that_failed_is_nobody_elses_trouble() -> None:
    kv, tier = make(FULL)
    other, _, _ = start(kv, [50, *range(60, 76)])
    tokens = list(range(17))
    first, _, _ = start(kv, tokens)
    tier.held = {(0, key) for key in first.keys}
    kv.close(first, forget=True)
    lease, found, _ = start(kv, tokens)
    assert found == 16
    kv.distrust(lease, tokens, 8)
    probe = kv.open()
    assert kv.find(probe, tokens, 16, tiers=False).num_tokens == 8  # what lies before is right
    assert kv.find(kv.open(), [50, *range(60, 76)], 16, tiers=False).num_tokens == 16
    assert not kv.shares(lease, other, 8)


@settings(max_examples=60)
@given(
    specs=st.sampled_from([(FULL,), (FULL, WINDOW), (WINDOW,)]),
    held=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12),
    kept=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12),
)
def test_a_hit_with_a_tier_is_what_one_cache_with_both_would_find(
    specs: tuple[Any, ...], held: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    tokens = list(range(41))

    def after(in_cache: set[tuple[int, int]], in_tier: set[tuple[int, int]]) -> int:
        kv, tier = make(*specs, num_blocks=64)
        first, _, _ = start(kv, tokens)
        keys = list(first.keys)
        kv.close(first)
        for group in range(len(specs)):
            pool = kv._pool_of[group]
            for link, key in enumerate(keys):
                if (group, link) not in in_cache and key in pool.find(group):
                    pool.forget(pool.find(group)[key])
        tier.held = {(group, keys[link]) for group, link in in_tier}
        lease, found, _ = start(kv, tokens)
        kv.check([lease])
        return found

    own = {entry for entry in kept if entry[0] < len(specs)}
    more = {entry for entry in held if entry[0] < len(specs)}
    assert after(own, more) == after(own | more, set())


@pytest.mark.parametrize("num_blocks", [4, 5])
def test_blocks_that_are_found_are_not_taken_for_what_is_loaded(num_blocks: int) -> None:
    kv, tier = make(FULL, num_blocks=num_blocks)
    tokens = list(range(17))
    first, _, _ = start(kv, tokens[:9])
    keys = list(first.keys)
    tables = list(first.tables[0])
    kv.close(first)
    probe = kv.open()
    kv._hash(probe, tokens, 16)
    tier.held = {(0, key) for key in probe.keys[2:4]}
    lease = kv.open()
    hit = kv.find(lease, tokens, 16)
    assert (hit.num_tokens, hit.num_local) == (16, 8)
    admitted = kv.admit(lease, hit, 16, 17, 17, 17)
    assert admitted == (num_blocks == 5)
    if admitted:
        assert lease.tables[0][:2] == tables[:2]
        assert keys[:2] == lease.keys[:2]
        kv.check([lease])


def test_watchers_are_told_of_every_offer_and_of_everything_forgotten() -> None:
    kv, tier = make(FULL, num_blocks=8)
    tokens = list(range(17))
    lease, _, _ = start(kv, tokens)
    assert tier.ranges == [(0, 16)]
    kv.commit(lease, tokens, 17)
    assert len(tier.ranges) == 1  # nothing more is full
    kv.forget_all(right=False)
    assert {(key, block) for _, key, block in tier.distrusted} == set(
        zip(lease.keys, lease.tables[0], strict=False)
    )
    kv.close(lease)
    start(kv, tokens)
    kv.forget_all(right=True)
    assert len(tier.evicted) == 4
    assert {block for _, _, block in tier.evicted}.isdisjoint({0})


def test_blocks_that_are_held_stay_until_the_lease_is_closed() -> None:
    kv, _ = make(FULL, num_blocks=8)
    tokens = list(range(17))
    lease, _, _ = start(kv, tokens)
    table = list(lease.tables[0][:2])
    held = kv.hold([table])
    kv.close(lease)
    spill(kv, 6)
    assert [kv.pools[0].find(0).get(key) for key in lease.keys[:2]] == table
    kv.check([held])
    kv.close(held)
    kv.check([])
    spill(kv, 8)
    assert not kv.pools[0].find(0)
