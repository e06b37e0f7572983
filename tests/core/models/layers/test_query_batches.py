"""Queries of several sequences in batches: each sees its own rows, and batches are few."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.models.layers import query_batches
from core.models.layers.query_batches import Queries, QueryBatch, SeenRows, make_batches

STRIDE = 1000
"""Slots of a sequence in these tests."""


def slots_of(sequences: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return sequences[:, None] * STRIDE + numbers


def sequences_of(steps: list[tuple[int, int]]) -> list[Queries]:
    """Return the tokens of sequences from (first position, number of tokens)."""
    found = []
    start = 0
    for index, (position, count) in enumerate(steps):
        found.append(Queries(index, start, start + count, position))
        start += count
    return found


def batches_of(steps: list[tuple[int, int]], seen: SeenRows) -> list[QueryBatch]:
    device = torch.device("cpu")
    return make_batches(sequences_of(steps), seen, slots_of, slots_of, device)


def visible(slots: torch.Tensor, is_hidden: torch.Tensor) -> list[int]:
    """Return the slots that a query sees, with repetitions."""
    return sorted(slots[~is_hidden].tolist())


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 4),
    st.sampled_from([0, 3]),
    st.sampled_from([40, 1 << 23]),
)
def test_each_query_sees_its_own_rows_once(
    steps: list[tuple[int, int]], window: int | None, rate: int, top_k: int, limit: int
) -> None:
    seen = SeenRows(window, 2, 4, rate=rate, top_k=top_k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_batches, "MAX_SCORES", limit)
        patch.setattr(query_batches, "MAX_ELEMENTS", 4 * limit)
        batches = batches_of(steps, seen)
    expected = {
        each.start + index: (each.sequence, each.position + index)
        for each in sequences_of(steps)
        for index in range(each.end - each.start)
    }
    assert {token for batch in batches for token in batch.tokens.flatten().tolist()} == set(
        expected
    )
    for batch in batches:
        for index in range(len(batch.members)):
            for query, token in enumerate(batch.tokens[index].tolist()):
                sequence, position = expected[token]
                oldest = 0 if window is None else max(0, position - window + 1)
                own = [STRIDE * sequence + at for at in range(oldest, position + 1)]
                assert batch.positions[index, query] == position
                assert visible(batch.slots[index], batch.is_hidden[index, query]) == own
                complete = (position + 1) // rate if rate else 0
                assert batch.complete is None or batch.complete[index, query] == complete
                if batch.far_slots is not None and batch.is_far_hidden is not None:
                    own = [STRIDE * sequence + at for at in range(complete)]
                    far = batch.far_slots[index], batch.is_far_hidden[index, query]
                    assert visible(*far) == own


@pytest.mark.parametrize("window", [None, 8])
def test_number_of_batches_does_not_depend_on_the_number_of_sequences(window: int | None) -> None:
    seen = SeenRows(window, 4, 16, rate=4)
    assert len(batches_of([(9 + at, 1) for at in range(3)], seen)) == 1
    assert len(batches_of([(9 + at, 1) for at in range(60)], seen)) == 1
    mixed = [(9, 1), (5, 7), (11, 5), (7, 8), *((at, 1) for at in range(20, 60))]
    assert len(batches_of(mixed, seen)) == 2


def test_batches_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_batches, "MAX_ELEMENTS", 4 * 64 * 100)
    found = batches_of([(at, 1) for at in range(90, 100)], SeenRows(None, 4, 64))
    assert [len(batch.members) for batch in found] == [4, 4, 2]
