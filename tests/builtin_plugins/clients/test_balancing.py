"""Which engine gets a request, by its cached prefixes and the open requests of each."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.clients.balancing import Balancer

KEY_TOKENS = 64


def key(*facts: int) -> bytes:
    return repr(facts).encode()


def conversation(number: int, turn: int) -> list[bytes]:
    """Return the keys of a prompt: two of a system prompt in common, four for each turn."""
    return [*map(key, range(2)), *(key(number, link) for link in range(4 * (turn + 1)))]


def choose(balancer: Balancer, keys: list[bytes]) -> int:
    """Send a request to the engine of least cost."""
    ranks = range(len(balancer.loads))
    chosen = balancer.choose(ranks, keys, KEY_TOKENS, KEY_TOKENS * len(keys))
    balancer.opened(chosen)
    return chosen


@pytest.mark.parametrize("concurrency", [1, 8, 25])
def test_conversations_stay_with_their_cache_and_engines_share_them(concurrency: int) -> None:
    balancer = Balancer(4)
    one_cache: set[bytes] = set()
    found = possible = 0
    turns = [(number, turn) for turn in range(8) for number in range(50)]
    draw = random.Random(concurrency)
    running: list[tuple[int, list[bytes]]] = []

    def end() -> None:
        rank, keys = running.pop(draw.randrange(len(running)))
        balancer.closed(rank)
        balancer.loads[rank].cached.add(keys)

    for number, turn in turns:
        while len(running) >= concurrency:
            end()
        keys = conversation(number, turn)
        possible += sum(each in one_cache for each in keys)
        one_cache.update(keys)
        rank = choose(balancer, keys)
        found += balancer.loads[rank].cached.match(keys)
        running.append((rank, keys))
    assert found >= 0.95 * possible
    counts = [load.num_requests for load in balancer.loads]
    assert max(counts) <= 1.5 * min(counts)


@pytest.mark.parametrize("num_keys", [0, 1, 40])
def test_equal_requests_at_once_are_shared_equally(num_keys: int) -> None:
    balancer = Balancer(4)
    keys = conversation(0, 0)[:num_keys]
    counts = Counter(choose(balancer, keys) for _ in range(64))
    assert len(counts) == 4
    assert all(abs(count - 16) <= 1 for count in counts.values())


def test_a_cached_prefix_outweighs_few_open_requests_and_not_many() -> None:
    balancer = Balancer(2)
    keys = conversation(0, 7)
    balancer.loads[1].cached.add(keys)
    balancer.loads[1].num_open = 5
    assert choose(balancer, keys) == 1
    balancer.loads[1].num_open = 500
    assert choose(balancer, keys) == 0


def test_restarted_engine_has_no_prefixes_and_gets_its_share() -> None:
    balancer = Balancer(2)
    for turn in range(20):
        choose(balancer, conversation(turn, 3))
    balancer.loads[0].cached.add(conversation(0, 0))
    balancer.restarted(0)
    assert balancer.loads[0].cached.match(conversation(0, 0)) == 0
    counts = Counter(choose(balancer, conversation(100 + i, 3)) for i in range(20))
    assert abs(counts[0] - counts[1]) <= 2


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(0, 6))
def test_without_prefixes_the_engine_with_fewest_requests_is_chosen(
    counts: list[int], num_keys: int
) -> None:
    balancer = Balancer(len(counts))
    for load, count in zip(balancer.loads, counts, strict=True):
        load.num_open = count
    chosen = choose(balancer, conversation(1, 1)[:num_keys])
    assert counts[chosen] == min(counts)
