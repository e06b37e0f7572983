"""What every eviction order must pass: each free block is evicted once, and no
other does.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from builtin_plugins.kv_eviction.contract import KVEviction, Retention
from core.api.plugins import construct

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = KVEviction

_NUM_BLOCKS = 40
_RETENTIONS = (None, Retention(0), Retention(90, 5.0), Retention(100, 3600.0), Retention(50))


def check_each_block_goes_once_and_no_other(subject: Subject) -> None:
    """Free blocks are there in some order, whatever their retention, and
    go.
    """
    _run(subject, seed=1)


def check_the_same_happens_again(subject: Subject) -> None:
    """Equal calls evict equal blocks: a replay of the scheduler depends on it."""
    first = _run(subject, seed=2)
    second = _run(subject, seed=2)
    assert first == second, f"{subject.entry.name}: equal calls evicted other blocks."


def check_pools_are_apart(subject: Subject) -> None:
    """Each pool's order knows its own blocks only."""
    eviction = _make(subject)
    first = eviction.order(_NUM_BLOCKS)
    second = eviction.order(_NUM_BLOCKS)
    first[1] = None
    assert len(second) == 0, f"{subject.entry.name}: two pools share an order."
    assert not list(second), f"{subject.entry.name}: two pools share an order."


def check_what_was_held_again_goes_later(subject: Subject) -> None:
    """Of blocks that are alike the one that was held the longest time ago goes first."""
    order = _make(subject).order(_NUM_BLOCKS)
    for block in (1, 2, 3):
        order[block] = None
    del order[1]
    order[1] = None
    gone = [order.popitem(last=False)[0] for _ in range(3)]
    assert gone == [2, 3, 1], (
        f"{subject.entry.name}: blocks 2, 3, 1 went back in this order, and {gone} went."
    )


def _run(subject: Subject, seed: int) -> list[int]:
    numbers = random.Random(seed)
    order = _make(subject).order(_NUM_BLOCKS)
    free: set[int] = set()
    gone = []
    now_s = 0.0
    for _ in range(2000):
        now_s += numbers.random()
        what = numbers.randrange(5)
        block = numbers.randrange(_NUM_BLOCKS)
        if what == 0 and block not in free:
            order[block] = None
            free.add(block)
        elif what == 1 and block in free:
            del order[block]
            free.remove(block)
        elif what == 2 and free:
            block, _ = order.popitem(last=False)
            assert block in free, (
                f"{subject.entry.name}: block {block} was evicted while in use or twice."
            )
            free.remove(block)
            gone.append(block)
            if numbers.random() < 0.8:
                order.invalidate(block)
        elif what == 3:
            order.touch(numbers.sample(range(_NUM_BLOCKS), 4), numbers.choice(_RETENTIONS), now_s)
        elif what == 4 and numbers.random() < 0.2:
            order.invalidate(block)
        assert len(order) == len(free), (
            f"{subject.entry.name}: it says that {len(order)} are free, {len(free)} are."
        )
        assert {*order} == free, (
            f"{subject.entry.name}: it has {sorted(order)}, free are {sorted(free)}."
        )
    return gone


def _make(subject: Subject) -> Any:
    target: Any = subject.target
    return construct(target, subject.config)
