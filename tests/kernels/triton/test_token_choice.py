"""The choice of tokens in Triton is the reference's, through the interpreter."""

from __future__ import annotations

import pytest
import torch

from builtin_plugins.op_impls.triton import ops
from core.models.ops import reference
from core.models.ops.sampling import Cut

VOCABULARIES = (1, 300, 2049)


def logits_of(rows: int, vocab: int) -> torch.Tensor:
    """Return logits as rows of a wider tensor."""
    return (
        torch.randn(rows, vocab + 3, generator=torch.Generator().manual_seed(vocab))[:, :vocab] * 3
    )


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_best_is_the_first_of_equals(rows: int, vocab: int) -> None:
    logits = logits_of(rows, vocab).round()
    for found, wanted in zip(ops.best(logits), reference.best(logits), strict=True):
        assert torch.equal(found, wanted)


def test_nan_is_before_all_and_rows_of_nothing_have_a_token() -> None:
    logits = logits_of(3, 2049)
    logits[0, 2000] = float("nan")
    logits[1] = float("-inf")
    assert ops.best(logits)[1].tolist() == reference.best(logits)[1].tolist()
    drawn = ops.draw(logits, torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    assert ((drawn >= 0) & (drawn < 2049)).all()


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("rows", [0, 1, 12])
def test_a_seed_draws_the_token_it_draws_elsewhere(rows: int, vocab: int) -> None:
    logits = logits_of(rows, vocab)
    if vocab > 1:
        logits[:, ::3] = float("-inf")
    seeds = torch.arange(rows) * 77 - 3
    positions = torch.arange(rows) * 5
    assert torch.equal(ops.draw(logits, seeds, positions), reference.draw(logits, seeds, positions))


@pytest.mark.parametrize("vocab", [1, 300])
def test_what_is_left_of_a_row_is_the_references(vocab: int) -> None:
    top_k = [0, 1, 3, 39, 1 << 20, 7]
    top_p = [1.0, 0.9, 0.3, 1e-50, 0.5, 1.0]
    logits = (logits_of(6, vocab) * 2).round() / 2  # with equals
    cut = Cut(top_k, top_p, vocab, logits.device)
    expected = reference.truncate(logits.clone(), cut)
    assert torch.equal(ops.truncate(logits, cut), expected)


def test_truncating_no_rows_is_nothing() -> None:
    logits = torch.zeros(0, 5)
    assert ops.truncate(logits, Cut([], [], 5, logits.device)).shape == (0, 5)


@pytest.mark.slow
def test_vocabularies_of_real_models() -> None:
    for vocab in (32000, 151936):
        logits = logits_of(3, vocab)
        cut = Cut([0, 50, 20], [0.9, 1.0, 0.95], vocab, logits.device)
        assert torch.equal(
            ops.truncate(logits.clone(), cut), reference.truncate(logits.clone(), cut)
        )
        seeds = torch.tensor([1, 2, 3])
        positions = torch.tensor([10, 20, 30])
        assert torch.equal(
            ops.draw(logits, seeds, positions), reference.draw(logits, seeds, positions)
        )
