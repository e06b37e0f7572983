"""Tokens are sampled from the distribution of the parameters, row by row."""

from __future__ import annotations

import math

import pytest
import torch

from core.models.ops.sampling import Truncation, best, draw
from core.models.ops.sampling import truncate as narrow
from core.testing.no_readback import no_readback
from core.types import SamplingParams

INF = float("inf")
LOGITS = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 1.5


def cut(logits: torch.Tensor, sampling: list[SamplingParams]) -> Truncation:
    """Return the truncation of the parameters."""
    return Truncation(
        [p.top_k for p in sampling], [p.top_p for p in sampling], logits.shape[1], logits.device
    )


def truncate(logits: torch.Tensor, sampling: list[SamplingParams]) -> torch.Tensor:
    """Return logits with excluded tokens at -inf."""
    return narrow(logits, cut(logits, sampling))


def sample(
    logits: torch.Tensor, sampling: list[SamplingParams], seeds: torch.Tensor
) -> torch.Tensor:
    """Return one token per row at position 5."""
    temperatures = torch.tensor([[p.temperature] for p in sampling])
    narrowing = cut(logits, sampling)
    with no_readback():
        return draw(narrow(logits / temperatures, narrowing), seeds, torch.full_like(seeds, 5))


def distribution(logits: torch.Tensor, params: SamplingParams) -> list[float]:
    """Return the expected probabilities."""
    weights = [math.exp(x / params.temperature) for x in logits.tolist()]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    if params.top_k > 0:
        order = order[: params.top_k]
    stored = []
    reached = 0.0
    total = sum(weights[token] for token in order)
    for token in order:
        if reached >= params.top_p * total:
            break
        stored.append(token)
        reached += weights[token]
    return [weights[token] / reached if token in stored else 0.0 for token in range(len(weights))]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 5},
        {"top_p": 0.7},
        {"top_k": 10, "top_p": 0.8},
        {"temperature": 0.7, "top_k": 4, "top_p": 0.99},
        {"top_p": 0.5, "temperature": 2.0},
    ],
    ids=str,
)
def test_sampled_frequencies_follow_the_distribution(params: dict[str, float]) -> None:
    count = 20_000
    sampling = SamplingParams(**params)
    tokens = sample(LOGITS.expand(count, -1), [sampling] * count, torch.arange(count))
    counts = tokens.bincount(minlength=len(LOGITS)).tolist()
    expected = [p * count for p in distribution(LOGITS, sampling)]
    assert all(c == 0 for c, e in zip(counts, expected, strict=True) if e == 0)
    common = [(c, e) for c, e in zip(counts, expected, strict=True) if e >= 5]
    chi_square = sum((c - e) ** 2 / e for c, e in common)
    freedom = len(common) - 1
    assert (
        chi_square < freedom + 4 * math.sqrt(2 * freedom) + 8
    )  # beyond all but one in many thousands


@pytest.mark.parametrize(
    "params", [{"top_k": 7, "top_p": 0.6}, {"top_p": 0.6}, {"top_k": 7}], ids=str
)
@pytest.mark.parametrize("vocab", [40, 3000])
def test_truncation_leaves_exactly_the_described_tokens(
    params: dict[str, float], vocab: int
) -> None:
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(2))
    sampling = SamplingParams(**params)
    left = truncate(logits.clone(), [sampling] * 6).isfinite()
    for row in range(6):
        assert left[row].tolist() == [p > 0 for p in distribution(logits[row], sampling)]


def test_rows_use_their_own_sampling_parameters() -> None:
    every = [
        SamplingParams(top_k=k, top_p=p)
        for k in (0, 1, 3, 39, 40, 99)
        for p in (1e-6, 0.3, 0.9, 1.0)
    ]
    logits = LOGITS.expand(len(every), -1)
    together = truncate(logits.clone(), every)
    for i, params in enumerate(every):
        alone = truncate(LOGITS[None].clone(), [params])
        assert torch.equal(together[i], alone[0])
        assert alone[0].isfinite().tolist() == [p > 0 for p in distribution(LOGITS, params)]


def test_seeded_sampling_is_batch_invariant() -> None:
    logits = torch.randn(30, 2000, generator=torch.Generator().manual_seed(3))
    every = [
        SamplingParams(temperature=t, top_k=k, top_p=p)
        for t in (1, 0.6)
        for k in (0, 8, 1500)
        for p in (1, 0.9)
    ]
    every = (every * 3)[:30]
    seeds = torch.arange(30) * 77
    together = sample(logits, every, seeds)
    for i in range(30):
        assert sample(logits[i : i + 1], [every[i]], seeds[i : i + 1])[0] == together[i]


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_p": 1e-9},
        {"top_p": 1e-50},
        {"top_k": 3, "top_p": 1e-50},
        {"temperature": 1e-4},
    ],
    ids=str,
)
def test_near_greedy_parameters_return_argmax(params: dict[str, float]) -> None:
    tokens = sample(LOGITS.expand(500, -1), [SamplingParams(**params)] * 500, torch.arange(500))
    assert (tokens == LOGITS.argmax()).all()


def test_single_remaining_token_is_sampled() -> None:
    logits = torch.full((200, 50), -INF)
    logits[:, 17] = -3.0
    every = [SamplingParams(top_k=k, top_p=p) for k in (0, 2) for p in (0.5, 1.0)] * 50
    assert (sample(logits, every, torch.arange(200)) == 17).all()


def test_vocabulary_of_one_token_is_supported() -> None:
    every = [SamplingParams(), SamplingParams(top_k=1), SamplingParams(top_p=0.1)]
    assert sample(torch.zeros(3, 1), every, torch.arange(3)).tolist() == [0, 0, 0]


def test_excluded_token_is_never_sampled() -> None:
    logits = LOGITS.clone()
    logits[torch.arange(0, 40, 2)] = -INF
    tokens = sample(
        logits.expand(5000, -1), [SamplingParams(temperature=100.0)] * 5000, torch.arange(5000)
    )
    assert (tokens % 2 == 1).all()


@pytest.mark.parametrize("vocab", [1, 2, 127, 128, 129, 300, 1024])
def test_argmax_ties_return_lowest_index(vocab: int) -> None:
    logits = torch.randn(
        64, vocab, generator=torch.Generator().manual_seed(vocab)
    ).round()  # with many equals
    values, tokens = best(logits)
    assert tokens.tolist() == [row.index(max(row)) for row in logits.tolist()]
    assert torch.equal(values, logits.amax(dim=-1))


def test_argmax_returns_nan_first() -> None:
    logits = torch.zeros(2, 500)
    logits[0, 400] = float("nan")
    values, tokens = best(logits)
    assert values.isnan().tolist() == [True, False]
    assert tokens.tolist() == [400, 0]


def test_improbable_tokens_within_top_k_remain() -> None:
    logits = torch.full((1, 300), -500.0)
    logits[0, 7] = 100.0
    assert (
        truncate(logits, [SamplingParams(top_k=2)]).isfinite().sum() == 300
    )  # all the others are equally good
