"""Spans with gaps: tokens see later runs, and not the tokens between them."""

from __future__ import annotations

import pytest
import torch

from builtin_plugins.attention_backends.common.look_ahead import LookAheadPlan, attend_spans
from core.model_spec.attention_params import AttentionParams, LookAheadSpan

LENGTH = 24
SIZE = 8
RUNS = ((4, 9), (12, 15), (15, 20))
SPANS = [
    LookAheadSpan(4, 9, 9, RUNS[1:]),
    LookAheadSpan(12, 15, 15, RUNS[2:]),
    LookAheadSpan(15, 20, 20),
]


def visible(window: int | None) -> torch.Tensor:
    """Return which keys each token sees."""
    positions = torch.arange(LENGTH)
    mask = positions[None] <= positions[:, None]
    in_run = torch.zeros(LENGTH, dtype=torch.bool)
    for start, end in RUNS:
        in_run[start:end] = True
    mask |= in_run[:, None] & in_run[None]
    if window is not None:
        mask &= positions[None] > positions[:, None] - window
    return mask


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("block_size", [1, 4])
def test_tokens_of_a_span_see_later_runs_but_not_the_text_between(
    window: int | None, block_size: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, LENGTH, 2, SIZE, generator=generator)
    params = AttentionParams(heads=2, kv_heads=2, head_size=SIZE, scale=SIZE**-0.5, window=window)
    blocks = torch.randperm(LENGTH // block_size, generator=generator)
    slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()
    cache = torch.empty(LENGTH, 2, 2, SIZE)
    cache[slots] = torch.stack((key, value), dim=1)
    plan = LookAheadPlan(None, [0, LENGTH], [LENGTH], blocks[None], block_size, SPANS)
    out = attend_spans(
        params, query, plan, lambda slots: cache[slots], torch.zeros(LENGTH, 2, SIZE)
    )
    scores = torch.einsum("nhd,mhd->hnm", query, key) * params.scale
    weights = scores.masked_fill(~visible(window), float("-inf")).softmax(-1)
    expected = torch.einsum("hnm,mhd->nhd", weights, value)
    for start, end in RUNS:
        torch.testing.assert_close(out[start:end], expected[start:end])
    assert not out[9:12].any(), "tokens outside the spans are not computed again"
