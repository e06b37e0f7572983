"""Which block goes first, and that ARC is not washed out by prompts that nobody asks for again."""

from __future__ import annotations

import pytest

from builtin_plugins.kv_connectors.bounded import BoundedDirectory
from builtin_plugins.kv_connectors.eviction import Name
from core.api import BlockKey


def key(index: int, group: int = 0) -> BlockKey:
    return BlockKey(group, index.to_bytes(32, "big"))


def ask(directory: BoundedDirectory, index: int) -> bool:
    """Use a block, or store it; say whether it was there."""
    if directory.holds(key(index)):
        directory.used(key(index))
        return True
    if directory.admit(key(index), ()) is not None:
        directory.stored(key(index))
    return False


def test_the_least_recently_used_goes_first() -> None:
    directory = BoundedDirectory(3, [1], "lru")
    for index in (0, 1, 2, 0, 3):
        ask(directory, index)
    assert [directory.holds(key(index)) for index in range(4)] == [True, False, True, True]


@pytest.mark.parametrize(("order", "least"), [("lru", 0), ("arc", 700)])
def test_a_run_of_strangers_does_not_take_the_place_of_what_is_asked_for_often(
    order: Name, least: int
) -> None:
    directory = BoundedDirectory(40, [1], order)
    hits = 0
    for turn in range(100):
        hits += sum(ask(directory, index) for index in range(10))
        if turn:
            for stranger in range(60):
                ask(directory, 1000 + 60 * turn + stranger)
        else:
            hits += sum(ask(directory, index) for index in range(10))
    assert hits >= least
    assert (hits < 100) == (order == "lru")


def test_arc_gives_more_room_to_what_is_missed() -> None:
    directory = BoundedDirectory(20, [1], "arc")
    for index in range(10):
        ask(directory, index)
        ask(directory, index)
    hits = 0
    for _ in range(60):  # twelve that are asked for in turn, beside ten that no longer are
        hits += sum(ask(directory, 100 + index) for index in range(12))
    assert hits > 600


def test_what_is_larger_than_all_there_is_is_not_taken() -> None:
    directory = BoundedDirectory(10, [4, 11], "lru")
    assert directory.admit(key(0, 1), ()) is None
    assert directory.admit(key(0), ()) == []
    assert directory.admit(key(0), ()) is None  # it is coming already
    directory.stored(key(0))
    assert directory.admit(key(1), ()) == []
    directory.lost(key(1))
    assert directory.num_bytes == 4
    assert directory.admit(key(2), {key(0)}) == []
    assert directory.admit(key(3), {key(0)}) is None
    assert directory.admit(key(3), ()) == [key(0)]
