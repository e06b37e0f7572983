"""Eviction policies: the suite, priorities, expiry and the retention share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from builtin_plugins.kv_eviction.api import Retention
from builtin_plugins.kv_eviction.policies import LRUPolicy, RetentionPolicy, RetentionQueue
from core.config import EngineConfig
from core.kv.pool import BlockPool
from core.testing import conformance
from core.testing.conformance import Case
from core.testing.invariants import check_pool

RETENTIONS = st.one_of(
    st.none(),
    st.builds(
        Retention, priority=st.integers(0, 100), duration_s=st.floats(0, 20, allow_nan=False)
    ),
)
TOUCHED = st.tuples(
    st.just("finish"), st.sets(st.integers(1, 11)), RETENTIONS, st.floats(0, 5, allow_nan=False)
)
ALLOCATED = st.tuples(st.just("allocate"), st.integers(1, 5))
OTHERS = st.tuples(
    st.sampled_from(["release", "touch", "remove", "remove all"]), st.integers(0, 20)
)


@pytest.mark.parametrize("case", conformance.cases("kv_eviction"), ids=str)
def test_shipped_policies_pass_kv_eviction_suite(case: Case) -> None:
    case()


def evict_all(queue: RetentionQueue) -> list[int]:
    """Return all blocks in eviction order."""
    return [queue.popitem(last=False)[0] for _ in range(len(queue))]


def filled(count: int, max_retained: int = 100) -> RetentionQueue:
    queue = RetentionQueue(max_retained)
    for block in range(1, count + 1):
        queue[block] = None
    return queue


def test_default_priority_evicts_least_recently_used() -> None:
    queue = filled(5)
    del queue[2]
    queue[2] = None
    queue.touch([1, 3], None, 1.0)
    assert evict_all(queue) == [4, 5, 2, 1, 3]


def test_eviction_follows_priority() -> None:
    queue = filled(6)
    queue.touch([2, 4], Retention(90), 0.0)
    queue.touch([1], Retention(60), 0.0)
    queue.touch([5], Retention(10), 0.0)
    assert [*queue] == evict_all(queue) == [5, 3, 6, 1, 2, 4]


def test_highest_priority_of_a_block_counts() -> None:
    queue = filled(3)
    queue.touch([1, 2], Retention(90, 10.0), 0.0)
    queue.touch([3], None, 0.0)
    queue.touch([1, 3], Retention(0), 1.0)
    queue.touch([2], Retention(70, 100.0), 1.0)
    assert evict_all(queue) == [3, 1, 2]


def test_expired_blocks_are_evicted_first() -> None:
    queue = filled(3)
    queue.touch([2], Retention(90, 10.0), 0.0)
    queue.touch([1, 3], None, 9.9)
    assert [*queue] == [1, 3, 2]
    queue.touch([], None, 10.0)
    assert evict_all(queue) == [2, 1, 3]


def test_repeated_retention_extends_the_expiry() -> None:
    queue = filled(2)
    queue.touch([1], Retention(90, 10.0), 0.0)
    queue.touch([1], Retention(90, 10.0), 8.0)
    queue.touch([2], None, 17.9)
    assert [*queue] == [2, 1]
    queue.touch([], None, 18.0)
    assert [*queue] == [1, 2]


def test_retention_is_bounded_by_share_newest_first() -> None:
    queue = filled(6, max_retained=2)
    queue.touch([1, 2, 3, 4], Retention(90), 0.0)
    assert evict_all(queue) == [5, 6, 1, 2, 3, 4]
    queue = filled(4, max_retained=2)
    queue.touch([1, 2], Retention(90), 0.0)
    queue.touch([3], Retention(60), 0.0)
    assert [*queue] == [4, 3, 1, 2]


def test_invalidated_block_loses_its_priority() -> None:
    queue = filled(3)
    queue.touch([1, 2], Retention(90), 0.0)
    queue.invalidate(2)
    assert [*queue] == [2, 3, 1]
    block, _ = queue.popitem(last=False)
    queue[block] = None
    assert [*queue] == [3, 2, 1]


def test_zero_share_is_plain_lru() -> None:
    config = EngineConfig()
    config = replace(config, options={**config.options, "kv_retention_share": 0.0})
    queue = RetentionPolicy(config).order(100)
    for block in (1, 2):
        queue[block] = None
    queue.touch([1], Retention(100), 0.0)
    assert evict_all(queue) == [2, 1]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(TOUCHED, ALLOCATED, OTHERS), max_size=60),
    st.sampled_from(["lru", "none", "some", "all"]),
)
def test_only_free_blocks_are_evicted(steps: list[Any], policy: str) -> None:
    """A pool with any policy behaves like a plain pool, but for the eviction order."""
    pool = BlockPool(12, [0])
    held = list[int]()
    max_retained = {"none": 0, "some": 4, "all": 11}
    queue: Any = LRUPolicy().order(12) if policy == "lru" else RetentionQueue(max_retained[policy])
    pool.free_queue = queue
    pool.on_removed.append(lambda group, key, block, valid: queue.invalidate(block))
    now_s = 0.0
    name = 0
    for kind, first, *more in steps:
        if kind == "finish":
            now_s += more[1]
            findable = set(pool.cached_blocks(0).values())
            queue.touch(sorted(first & findable), more[0], now_s)
        elif kind == "allocate" and first <= pool.num_free:
            allocated = pool.allocate(first)
            assert not set(allocated) & set(held)
            held += allocated
            name += first
            pool.add_keys(0, [bytes([name - i]) for i in range(first)], allocated)
        elif kind == "release" and held:
            pool.release([held.pop(first % len(held))])
        elif kind == "touch" and pool.cached_blocks(0):
            block = sorted(pool.cached_blocks(0).values())[first % len(pool.cached_blocks(0))]
            pool.touch([block])
            held.append(block)
        elif kind == "remove" and first:
            pool.remove_key(first % 11 + 1)
        elif kind == "remove all":
            pool.remove_keys_since(0)
        check_pool(pool, [held.count(block) for block in range(12)])
        if policy != "lru":
            num_retained = sum(level > 50 for level in queue._level_of.values())
            assert num_retained == queue._num_retained <= queue._max_retained
    pool.release(held)
    assert sorted(pool.allocate(11)) == [*range(1, 12)]
