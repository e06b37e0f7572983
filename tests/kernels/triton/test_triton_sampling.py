"""The choice of tokens in Triton is the reference's, through the interpreter."""

from __future__ import annotations

import pytest
import torch

from builtin_plugins.op_impls.triton import ops
from core.models.ops import reference
from core.models.ops.sampling import Truncation

VOCABULARIES = (1, 300, 2049)


def logits_of(rows: int, vocab: int) -> torch.Tensor:
    """Return logits as rows of a wider tensor."""
    return (
        torch.randn(rows, vocab + 3, generator=torch.Generator().manual_seed(vocab))[:, :vocab] * 3
    )


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_argmax_ties_return_lowest_index(rows: int, vocab: int) -> None:
    logits = logits_of(rows, vocab).round()
    for found, expected in zip(ops.best(logits), reference.best(logits), strict=True):
        assert torch.equal(found, expected)


def test_argmax_of_nan_and_fully_masked_rows() -> None:
    logits = logits_of(3, 2049)
    logits[0, 2000] = float("nan")
    logits[1] = float("-inf")
    assert ops.best(logits)[1].tolist() == reference.best(logits)[1].tolist()
    drawn = ops.draw(logits, torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    assert ((drawn >= 0) & (drawn < 2049)).all()


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("rows", [0, 1, 12])
def test_sampling_matches_reference_for_a_seed(rows: int, vocab: int) -> None:
    logits = logits_of(rows, vocab)
    if vocab > 1:
        logits[:, ::3] = float("-inf")
    seeds = torch.arange(rows) * 77 - 3
    positions = torch.arange(rows) * 5
    assert torch.equal(ops.draw(logits, seeds, positions), reference.draw(logits, seeds, positions))


@pytest.mark.parametrize("vocab", [1, 300])
def test_truncation_matches_reference(vocab: int) -> None:
    top_k = [0, 1, 3, 39, 1 << 20, 7]
    top_p = [1.0, 0.9, 0.3, 1e-50, 0.5, 1.0]
    logits = (logits_of(6, vocab) * 2).round() / 2  # with equals
    cut = Truncation(top_k, top_p, vocab, logits.device)
    expected = reference.truncate(logits.clone(), cut)
    assert torch.equal(ops.truncate(logits, cut), expected)


def test_truncation_of_no_rows() -> None:
    logits = torch.zeros(0, 5)
    assert ops.truncate(logits, Truncation([], [], 5, logits.device)).shape == (0, 5)


@pytest.mark.slow
def test_real_vocabulary_sizes() -> None:
    for vocab in (32000, 151936):
        logits = logits_of(3, vocab)
        cut = Truncation([0, 50, 20], [0.9, 1.0, 0.95], vocab, logits.device)
        assert torch.equal(
            ops.truncate(logits.clone(), cut), reference.truncate(logits.clone(), cut)
        )
        seeds = torch.tensor([1, 2, 3])
        positions = torch.tensor([10, 20, 30])
        assert torch.equal(
            ops.draw(logits, seeds, positions), reference.draw(logits, seeds, positions)
        )
