"""Orders of eviction: the suite, and what is kept, for how long, and how much of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from builtin_plugins.kv_eviction.lru import LeastRecentlyUsed
from builtin_plugins.kv_eviction.retention import Retaining, RetainingOrder
from core.api import Retention
from core.config import EngineConfig
from core.kv.pool import BlockPool
from core.testing import conformance
from core.testing.conformance import Case

SAID = st.one_of(
    st.none(),
    st.builds(
        Retention, priority=st.integers(0, 100), duration_s=st.floats(0, 20, allow_nan=False)
    ),
)
USED = st.tuples(
    st.just("used"), st.sets(st.integers(1, 11)), SAID, st.floats(0, 5, allow_nan=False)
)
TAKEN = st.tuples(st.just("take"), st.integers(1, 5))
OTHERS = st.tuples(st.sampled_from(["give", "touch", "forget", "forget all"]), st.integers(0, 20))


@pytest.mark.parametrize("case", conformance.cases("kv_eviction"), ids=str)
def test_orders_that_are_shipped_hold_to_the_contract(case: Case) -> None:
    case()


def gone(order: RetainingOrder) -> list[int]:
    """Return the blocks as they go."""
    return [order.popitem(last=False)[0] for _ in range(len(order))]


def filled(count: int, most_kept: int = 100) -> RetainingOrder:
    order = RetainingOrder(most_kept)
    for block in range(1, count + 1):
        order[block] = None
    return order


def test_without_a_word_the_least_recently_used_goes_first() -> None:
    order = filled(5)
    del order[2]
    order[2] = None
    order.used([1, 3], None, 1.0)
    assert gone(order) == [4, 5, 2, 1, 3]


def test_what_is_worth_less_goes_first_and_what_is_worth_more_last() -> None:
    order = filled(6)
    order.used([2, 4], Retention(90), 0.0)
    order.used([1], Retention(60), 0.0)
    order.used([5], Retention(10), 0.0)
    assert [*order] == gone(order) == [5, 3, 6, 1, 2, 4]


def test_the_highest_of_what_is_said_counts_and_nobody_lowers_what_others_use() -> None:
    order = filled(3)
    order.used([1, 2], Retention(90, 10.0), 0.0)
    order.used([3], None, 0.0)
    order.used([1, 3], Retention(0), 1.0)
    order.used([2], Retention(70, 100.0), 1.0)
    assert gone(order) == [3, 1, 2]


def test_what_has_been_kept_for_as_long_as_was_said_goes_before_what_is_usual() -> None:
    order = filled(3)
    order.used([2], Retention(90, 10.0), 0.0)
    order.used([1, 3], None, 9.9)
    assert [*order] == [1, 3, 2]
    order.used([], None, 10.0)
    assert gone(order) == [2, 1, 3]


def test_what_is_said_again_is_kept_for_longer() -> None:
    order = filled(2)
    order.used([1], Retention(90, 10.0), 0.0)
    order.used([1], Retention(90, 10.0), 8.0)
    order.used([2], None, 17.9)
    assert [*order] == [2, 1]
    order.used([], None, 18.0)
    assert [*order] == [1, 2]


def test_no_more_is_kept_than_the_share_and_the_newest_of_equal_worth_is() -> None:
    order = filled(6, most_kept=2)
    order.used([1, 2, 3, 4], Retention(90), 0.0)
    assert gone(order) == [5, 6, 1, 2, 3, 4]
    order = filled(4, most_kept=2)
    order.used([1, 2], Retention(90), 0.0)
    order.used([3], Retention(60), 0.0)
    assert [*order] == [4, 3, 1, 2]


def test_what_a_forgotten_block_was_worth_is_forgotten() -> None:
    order = filled(3)
    order.used([1, 2], Retention(90), 0.0)
    order.forgotten(2)
    assert [*order] == [2, 3, 1]
    block, _ = order.popitem(last=False)
    order[block] = None
    assert [*order] == [3, 2, 1]


def test_a_share_of_nothing_is_a_queue() -> None:
    config = EngineConfig()
    config = replace(config, options={**config.options, "kv_retention_share": 0.0})
    order = Retaining(config).order(100)
    for block in (1, 2):
        order[block] = None
    order.used([1], Retention(100), 0.0)
    assert gone(order) == [2, 1]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(USED, TAKEN, OTHERS), max_size=60),
    st.sampled_from(["lru", "none", "some", "all"]),
)
def test_nothing_that_is_held_ever_goes_and_no_room_is_lost(steps: list[Any], what: str) -> None:
    """A pool over an order, whatever is said to it: as a pool is by itself, but for which free
    block goes first.
    """
    pool = BlockPool(12, [0])
    held = list[int]()
    kept = {"none": 0, "some": 4, "all": 11}
    order: Any = LeastRecentlyUsed().order(12) if what == "lru" else RetainingOrder(kept[what])
    pool.free = order
    pool.forgotten.append(lambda group, key, block, right: order.forgotten(block))
    now_s = 0.0
    name = 0
    for kind, first, *more in steps:
        if kind == "used":
            now_s += more[1]
            findable = set(pool.find(0).values())
            order.used(sorted(first & findable), more[0], now_s)
        elif kind == "take" and first <= pool.num_free:
            taken = pool.take(first)
            assert not set(taken) & set(held)
            held += taken
            name += first
            pool.remember(0, [bytes([name - i]) for i in range(first)], taken)
        elif kind == "give" and held:
            pool.give([held.pop(first % len(held))])
        elif kind == "touch" and pool.find(0):
            block = sorted(pool.find(0).values())[first % len(pool.find(0))]
            pool.touch([block])
            held.append(block)
        elif kind == "forget" and first:
            pool.forget(first % 11 + 1)
        elif kind == "forget all":
            pool.forget_since(0)
        pool.check([held.count(block) for block in range(12)])
        if what != "lru":
            assert (
                sum(level > 50 for level in order._level_of.values())
                == order._num_kept
                <= order._most_kept
            )
    pool.give(held)
    assert sorted(pool.take(11)) == [*range(1, 12)]
