"""The bounded directory and its cache policies LRU and ARC."""

from __future__ import annotations

import pytest

from builtin_plugins.kv_connectors.api import BlockKey
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName


def key(index: int, group: int = 0) -> BlockKey:
    return BlockKey(group, index.to_bytes(32, "big"))


def request(directory: BoundedDirectory, index: int) -> bool:
    """Use a block, or store it. Return whether it was a hit."""
    if directory.holds(key(index)):
        directory.touch(key(index))
        return True
    if directory.admit(key(index), ()) is not None:
        directory.mark_stored(key(index))
    return False


def test_lru_evicts_least_recently_used() -> None:
    directory = BoundedDirectory(3, [1], "lru")
    for index in (0, 1, 2, 0, 3):
        request(directory, index)
    assert [directory.holds(key(index)) for index in range(4)] == [True, False, True, True]


@pytest.mark.parametrize(("policy", "min_hits"), [("lru", 0), ("arc", 700)])
def test_arc_resists_scans(policy: PolicyName, min_hits: int) -> None:
    directory = BoundedDirectory(40, [1], policy)
    hits = 0
    for turn in range(100):
        hits += sum(request(directory, index) for index in range(10))
        if turn:
            for new in range(60):
                request(directory, 1000 + 60 * turn + new)
        else:
            hits += sum(request(directory, index) for index in range(10))
    assert hits >= min_hits
    assert (hits < 100) == (policy == "lru")


def test_arc_adapts_to_ghost_hits() -> None:
    directory = BoundedDirectory(20, [1], "arc")
    for index in range(10):
        request(directory, index)
        request(directory, index)
    hits = 0
    for _ in range(60):  # twelve used in turn, in addition to ten that are not used any more
        hits += sum(request(directory, 100 + index) for index in range(12))
    assert hits > 600


def test_directory_admits_within_capacity() -> None:
    directory = BoundedDirectory(10, [4, 11], "lru")
    assert directory.admit(key(0, 1), ()) is None
    assert directory.admit(key(0), ()) == []
    assert directory.admit(key(0), ()) is None  # it is already admitted
    directory.mark_stored(key(0))
    assert directory.admit(key(1), ()) == []
    directory.discard(key(1))
    assert directory.num_bytes == 4
    assert directory.admit(key(2), {key(0)}) == []
    assert directory.admit(key(3), {key(0)}) is None
    assert directory.admit(key(3), ()) == [key(0)]
