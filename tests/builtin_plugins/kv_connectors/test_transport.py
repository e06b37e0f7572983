"""Connectors over a `Transport`: blocks are read intact, or recomputed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from builtin_plugins.kv_connectors.tcp.transport import Arena
from core import LLM
from core.testing import conformance
from core.testing.conformance import Case
from tests.builtin_plugins.kv_connectors.copying_transport import CopyingTransport
from tests.builtin_plugins.kv_connectors.engine_pairs import decode, open_peer, prefill
from tests.builtin_plugins.kv_connectors.small_engines import FAKE, only_tier

PLUGIN = "tests.builtin_plugins.kv_connectors.copying_transport"


def open_copying(role: str, **options: Any) -> LLM:
    return open_peer(role, connector="copying", plugins=[*FAKE, PLUGIN], **options)


@pytest.fixture
def pair() -> Iterator[tuple[LLM, LLM]]:
    with open_copying("kv_producer") as producer, open_copying("kv_consumer") as consumer:
        yield producer, consumer


@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_transport_passes_kv_connector_suite(case: Case) -> None:
    case()


def test_transport_reads_blocks_of_another_engine(
    expected: list[list[int]], pair: tuple[LLM, LLM]
) -> None:
    producer, consumer = pair
    tokens, found = decode(consumer, prefill(producer))
    assert (tokens, min(found)) == (expected, 64)
    assert only_tier(consumer).status.counts.load_failures == 0


@pytest.mark.parametrize("how", ["transfer fails", "memory is overwritten"])
def test_failed_or_corrupt_read_is_recomputed(
    expected: list[list[int]], pair: tuple[LLM, LLM], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair
    offers = prefill(producer)

    def fail() -> None:
        if how == "transfer fails":
            raise OSError("the cable was pulled")
        for memory in CopyingTransport.registered.values():
            memory[:] = 7

    monkeypatch.setattr(CopyingTransport, "before_read", staticmethod(fail))
    tokens, found = decode(consumer, offers)
    assert (tokens, max(found)) == (expected, 0)
    assert only_tier(consumer).status.counts.load_failures > 0
    assert only_tier(consumer).status.info()["state"] == "degraded"


def test_engines_with_different_transports_are_rejected(
    expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with open_copying("kv_producer") as producer, open_peer("kv_consumer") as consumer:
        assert decode(consumer, prefill(producer)) == (expected, [0] * len(expected))
        assert "kv_connector is copying there and None here" in caplog.text


def test_arena_slices_never_overlap_and_coalesce() -> None:
    numbers = random.Random(1)
    arena = Arena(1000)
    held: list[Any] = []
    for _ in range(3000):
        if held and numbers.random() < 0.5:
            arena.free(held.pop(numbers.randrange(len(held))))
            continue
        size = numbers.choice((40, 70, 300))
        try:
            held.append(arena.allocate(size))
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
        arena.free(piece)
    assert arena.allocate(1000).nbytes == 1000
