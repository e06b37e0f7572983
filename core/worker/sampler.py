"""Chooses the next token of every row: temperature, top-k, top-p, and one uniform number per row.

The token is the inverse of the cumulative distribution at that number, in vocabulary order. What a row gets
depends on its own logits, parameters, seed and position: no step takes another path because of its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import pad

from core.types import SamplingParams
from core.worker.noise import uniform

SORTED: Final = 1024
"""Up to this top-k the nucleus is found among sorted candidates, beyond it by bisection."""
ONE_BITS: Final = 0x3F800000
"""1.0 as a float32's bits; non-negative floats are ordered like their bits."""
SPAN: Final = 128
"""Tokens whose probabilities are summed before the cumulative sum is taken."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How the rows of one step choose; lists are parallel to the logits' rows."""

    sampling: list[SamplingParams]
    seeds: torch.Tensor
    """[n] int64."""
    positions: torch.Tensor
    """[n] int64: position of the token being chosen."""


def random_rows(sampling: list[SamplingParams]) -> list[int]:
    """Return the indices of rows that are not greedy."""
    return [i for i, params in enumerate(sampling) if params.temperature > 0]


def apply_temperature(logits: torch.Tensor, sampling: list[SamplingParams]) -> torch.Tensor:
    """Return logits [n, vocab] divided by each row's temperature."""
    if all(params.temperature == 1 for params in sampling):
        return logits
    temperatures = torch.tensor([params.temperature for params in sampling], dtype=torch.float32)
    return logits / temperatures.clamp_(min=1e-5).to(logits.device, non_blocking=True)[:, None]


def truncate(logits: torch.Tensor, sampling: list[SamplingParams]) -> torch.Tensor:
    """Return logits with everything outside each row's top-k and top-p at -inf; changes its argument.

    Tokens as good as the last one kept are kept as well.
    """
    vocab = logits.shape[-1]
    few: list[int] = []
    nucleus_of_few: list[int] = []
    nucleus_of_all: list[int] = []
    for i, params in enumerate(sampling):
        limited = 0 < params.top_k < vocab
        if limited:
            few.append(i)
        if params.top_p < 1:
            (nucleus_of_few if limited and params.top_k <= SORTED else nucleus_of_all).append(i)
    if few:
        ks = [sampling[i].top_k for i in few]
        part = _rows(logits, few)
        _exclude(logits, few, part < _kth_largest(part, ks))
    for rows, floor in ((nucleus_of_few, _floor_by_sorting), (nucleus_of_all, _floor_by_bisection)):
        if rows:
            weights = _weights(_rows(logits, rows))
            shares = weights.new_tensor([sampling[i].top_p for i in rows])[:, None]
            most = max(sampling[i].top_k for i in rows)
            _exclude(logits, rows, weights < floor(weights, weights.sum(dim=-1, keepdim=True) * shares, most))
    return logits


def draw(logits: torch.Tensor, how: Draw) -> torch.Tensor:
    """Return one token per row, [n] int64, from final logits [n, vocab]; excluded tokens are at -inf."""
    vocab = logits.shape[-1]
    weights = _weights(logits)
    spans = pad(weights, (0, -vocab % SPAN)).view(len(weights), -1, SPAN)  # [n, spans, SPAN]
    ends = spans.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # [n, spans]
    target = uniform(how.seeds, how.positions)[:, None] * ends[:, -1:]
    span = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[-1] - 1)  # [n, 1]
    rest = target - torch.where(span > 0, ends.gather(1, (span - 1).clamp(min=0)), 0.0)
    inside = spans.gather(1, span[:, :, None].expand(-1, -1, SPAN))[:, 0]  # [n, SPAN]
    place = torch.searchsorted(inside.cumsum(dim=-1, dtype=torch.float64), rest, right=True)
    tokens = (span * SPAN + place).clamp_(max=vocab - 1)
    # Rounding may run past the last possible token; the best one is then as good a choice as any.
    return tokens.where(weights.gather(1, tokens) > 0, logits.argmax(dim=-1, keepdim=True))[:, 0]


def _rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return logits if len(rows) == len(logits) else logits[rows]


def _exclude(logits: torch.Tensor, rows: list[int], excluded: torch.Tensor) -> None:
    """Set excluded tokens [len(rows), vocab] of these rows to -inf."""
    if len(rows) == len(logits):
        logits.masked_fill_(excluded, float("-inf"))
    else:
        logits[rows] = logits[rows].masked_fill_(excluded, float("-inf"))


def _weights(logits: torch.Tensor) -> torch.Tensor:
    """Return probabilities as multiples of the best one's."""
    return (logits - logits.amax(dim=-1, keepdim=True)).exp_()


def _kth_largest(logits: torch.Tensor, ks: list[int]) -> torch.Tensor:
    best = torch.topk(logits, max(ks), dim=-1).values  # [n, max k], descending
    return best.gather(1, torch.tensor(ks).to(logits.device, non_blocking=True)[:, None] - 1)


def _floor_by_sorting(weights: torch.Tensor, wanted: torch.Tensor, most: int) -> torch.Tensor:
    """Return the smallest weight of the smallest set of best tokens that weighs `wanted`, [n, 1]."""
    best = torch.topk(weights, most, dim=-1).values
    before = best.cumsum(dim=-1, dtype=torch.float64) - best  # weight of everything better
    last = (before < wanted).sum(dim=-1, keepdim=True) - 1
    return best.gather(1, last.clamp_(min=0))


def _floor_by_bisection(weights: torch.Tensor, wanted: torch.Tensor, most: int) -> torch.Tensor:
    """Return the same without sorting a vocabulary: thirty sums over it."""
    low = wanted.new_zeros(wanted.shape).view(torch.int32)
    high = low + (ONE_BITS + 1)
    kept = torch.empty_like(weights)
    for _ in range(ONE_BITS.bit_length()):
        middle = (low + high) >> 1
        torch.ge(weights, middle.view(torch.float32), out=kept)
        enough = kept.mul_(weights).sum(dim=-1, keepdim=True) >= wanted
        low, high = middle.where(enough, low), high.where(enough, middle)
    return low.view(torch.float32)
