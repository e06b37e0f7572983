"""Blocks that are read where they lie: right or not at all, whatever becomes of them meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from builtin_plugins.kv_connectors.tcp.wired import Arena
from core import LLM
from core.testing import conformance
from core.testing.conformance import Case
from tests.kv_connectors.copying import Wire
from tests.kv_connectors.pairs import decode, open_peer, prefill
from tests.kv_connectors.trial import FAKE, traffic

PLUGIN = "tests.kv_connectors.copying"


def open_copying(role: str, **options: Any) -> LLM:
    return open_peer(role, connector="copying", plugins=[*FAKE, PLUGIN], **options)


@pytest.fixture
def pair() -> Iterator[tuple[LLM, LLM]]:
    with open_copying("kv_producer") as producer, open_copying("kv_consumer") as consumer:
        yield producer, consumer


@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_it_holds_to_the_contract(case: Case) -> None:
    case()


def test_an_engine_reads_what_another_has_computed(
    expected: list[list[int]], pair: tuple[LLM, LLM]
) -> None:
    producer, consumer = pair
    tokens, found = decode(consumer, prefill(producer))
    assert (tokens, min(found)) == (expected, 64)
    assert traffic(consumer).counts.unloaded == 0


@pytest.mark.parametrize("how", ["it breaks", "it is another block's by then"])
def test_what_is_not_read_right_is_computed(
    expected: list[list[int]], pair: tuple[LLM, LLM], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair
    offers = prefill(producer)

    def spoil() -> None:
        if how == "it breaks":
            raise OSError("the cable was pulled")
        for memory in Wire.known.values():
            memory[:] = 7

    monkeypatch.setattr(Wire, "before", staticmethod(spoil))
    tokens, found = decode(consumer, offers)
    assert (tokens, max(found)) == (expected, 0)
    assert traffic(consumer).counts.unloaded > 0
    assert traffic(consumer).info()["state"] == "degraded"


def test_engines_over_different_wires_are_refused_by_name(
    expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with open_copying("kv_producer") as producer, open_peer("kv_consumer") as consumer:
        assert decode(consumer, prefill(producer)) == (expected, [0] * len(expected))
        assert "kv_connector is copying there and None here" in caplog.text


def test_pieces_of_memory_never_overlap_and_come_together_again() -> None:
    numbers = random.Random(1)
    arena = Arena(1000)
    held: list[Any] = []
    for _ in range(3000):
        if held and numbers.random() < 0.5:
            arena.give_back(held.pop(numbers.randrange(len(held))))
            continue
        size = numbers.choice((40, 70, 300))
        try:
            held.append(arena.take(size))
        except MemoryError:
            gaps = np.ones(1000, bool)
            for piece in held:
                start = piece.ctypes.data - arena.memory.ctypes.data
                gaps[start : start + piece.nbytes] = False
            runs = "".join("x" if free else " " for free in gaps).split()
            assert max(map(len, runs), default=0) < size
        spans = sorted((piece.ctypes.data, piece.ctypes.data + piece.nbytes) for piece in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for piece in held:
        arena.give_back(piece)
    assert arena.take(1000).nbytes == 1000
