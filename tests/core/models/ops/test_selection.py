"""Selection of the highest scores, in plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.models.ops import reference, selection
from core.models.ops.selection import top_positions


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("limit", [1, 64, 1 << 22])
def test_selection_in_pieces_equals_reference(
    block_size: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MAX_PRODUCTS", limit)
    monkeypatch.setattr(selection, "KEYS_PER_PIECE", min(limit * 8, 4096))
    torch.manual_seed(0)
    length = 50
    queries = 6
    count = 9
    num_blocks = -(-length // block_size)
    query = torch.randint(-3, 4, (queries, 3, 6)).float()
    weights = torch.randint(-2, 3, (queries, 3)).float()
    keys = torch.randint(-3, 4, (num_blocks + 1, block_size, 6)).float()
    table = torch.randperm(num_blocks + 1)[:num_blocks].int()
    seen = torch.arange(length - queries + 1, length + 1)
    inputs = (query, weights, keys, table, seen, count)
    assert torch.equal(selection.select_tokens(*inputs), reference.select_tokens(*inputs))


@given(
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, float("-inf")]), min_size=1, max_size=30),
    st.data(),
)
def test_top_positions_are_the_highest_and_of_equals_the_first(
    scores: list[float], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(scores)))
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    found = top_positions(torch.tensor([scores, scores[::-1]]), count)
    assert found[0].tolist() == sorted(order[:count])
    padded = torch.tensor([[*scores, float("-inf")]])
    assert top_positions(padded, count).tolist() == [sorted(order[:count])]


def test_positions_stay_valid_where_scores_are_no_numbers() -> None:
    scores = torch.tensor([[float("nan")] * 9, [1.0, float("nan"), *[0.0] * 7]])
    found = top_positions(scores, 4)
    assert found.shape == (2, 4)
    assert 0 <= int(found.min()) <= int(found.max()) < 9
