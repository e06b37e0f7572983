"""The matrix that mixes residual streams."""

from __future__ import annotations

import pytest
import torch

from core.models.layers.hyper_connections import doubly_stochastic


@pytest.mark.parametrize("count", [1, 2, 4])
def test_mixing_matrices_have_rows_and_columns_that_sum_to_one(count: int) -> None:
    logits = torch.randn(5, count, count, generator=torch.Generator().manual_seed(count))
    found = doubly_stochastic(logits, 50, 1e-7)
    assert (found > 0).all()
    for axis in (1, 2):
        assert torch.allclose(found.sum(axis), torch.ones(5, count), atol=1e-4)
