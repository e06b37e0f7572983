"""Chooses the next token of every row: temperature, top-k, top-p, and one uniform number per row.

The token is the inverse of the cumulative distribution at that number, in vocabulary order. What a row gets
depends on its own logits, parameters, seed and position: no step takes another path because of its neighbours.

The numbers are SplitMix64 (Steele, Lea, Flood 2014) over a mixed seed, alike on every device; integer arithmetic wraps
modulo 2**64, which signed 64-bit tensors do as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from core.types import SamplingParams

SORTED: Final = 1024
"""Up to this top-k the candidates are sorted, and the nucleus is found among them; beyond it by bisection."""
ONE_BITS: Final = 0x3F800000
"""1.0 as a float32's bits; non-negative floats are ordered like their bits."""
SPAN: Final = 128
"""Neighbouring tokens that are reduced to one number first: the next step, over spans, is then cheap."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
FIRST: Final = _signed(0xBF58476D1CE4E5B9)
SECOND: Final = _signed(0x94D049BB133111EB)


def random_rows(sampling: list[SamplingParams]) -> list[int]:
    """Return the indices of rows that are not greedy."""
    return [i for i, params in enumerate(sampling) if params.temperature > 0]


def best_tokens(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best logit and its token per row, [n] each; the first of equals, NaN before all."""
    span = _by_span(logits, lambda part: part.amax(dim=-1)).argmax(dim=-1, keepdim=True)  # [n, 1]
    values, places = _inside(logits, span).max(dim=-1)
    return values, span[:, 0] * SPAN + places


def apply_temperature(logits: torch.Tensor, sampling: list[SamplingParams]) -> torch.Tensor:
    """Return logits [n, vocab] divided by each row's temperature; changes its argument."""
    if all(params.temperature == 1 for params in sampling):
        return logits
    temperatures = torch.tensor([[params.temperature] for params in sampling], dtype=torch.float32)
    return logits.div_(temperatures.clamp_(min=1e-5).to(logits.device, non_blocking=True))


def truncate(logits: torch.Tensor, sampling: list[SamplingParams]) -> torch.Tensor:
    """Return logits with everything outside each row's top-k and top-p at -inf; changes its argument.

    Tokens as good as the last one kept are kept as well.
    """
    vocab = logits.shape[-1]
    few: list[int] = []
    many: list[int] = []
    nucleus: list[int] = []
    for i, params in enumerate(sampling):
        limited = 0 < params.top_k < vocab
        if limited:
            (few if params.top_k <= SORTED else many).append(i)
        if params.top_p < 1 and not (limited and params.top_k <= SORTED):
            nucleus.append(i)
    for rows in (few, many):
        if rows:
            part = _rows(logits, rows)
            _exclude(logits, rows, part < _floor_by_sorting(part, [sampling[i] for i in rows]))
    if nucleus:
        weights = _rows(logits, nucleus).softmax(dim=-1)
        shares = _column(weights, [sampling[i].top_p for i in nucleus])
        _exclude(logits, nucleus, weights < _floor_by_bisection(weights, weights.sum(dim=-1, keepdim=True) * shares))
    return logits


def draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return one token per row, [n] int64, from final logits [n, vocab]; excluded tokens are at -inf.

    `seeds` and `positions` (of the tokens being chosen) are [n] int64.
    """
    weights = logits.softmax(dim=-1)
    ends = _by_span(weights, lambda part: part.sum(dim=-1)).cumsum(dim=-1, dtype=torch.float64)  # [n, spans]
    target = uniform(seeds, positions)[:, None] * ends[:, -1:]
    span = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[-1] - 1)  # [n, 1]
    rest = target - torch.where(span > 0, ends.gather(1, (span - 1).clamp(min=0)), 0.0)
    inside = _inside(weights, span).cumsum(dim=-1, dtype=torch.float64)  # [n, SPAN]
    tokens = (span * SPAN + torch.searchsorted(inside, rest, right=True)).clamp_(max=logits.shape[-1] - 1)[:, 0]
    # Rounding may run past the last possible token; the best one is then as good a choice as any.
    return tokens.where(weights.gather(1, tokens[:, None])[:, 0] > 0, best_tokens(logits)[1])


def _by_span(values: torch.Tensor, reduce: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the reduction of each span of values [n, vocab], [n, spans]; the last span may be shorter."""
    spans, rest = divmod(values.shape[-1], SPAN)
    parts = reduce(values[:, : spans * SPAN].view(values.shape[0], spans, SPAN))
    return torch.cat((parts, reduce(values[:, None, spans * SPAN :])), dim=-1) if rest else parts


def _inside(values: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """Return the values of one span per row, [n, SPAN]; past the last token it is said again."""
    places = span * SPAN + torch.arange(SPAN, device=span.device)
    return values.gather(1, places.clamp_(max=values.shape[-1] - 1))


def _rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return logits if len(rows) == len(logits) else logits[rows]


def _exclude(logits: torch.Tensor, rows: list[int], excluded: torch.Tensor) -> None:
    """Set excluded tokens [len(rows), vocab] of these rows to -inf."""
    if len(rows) == len(logits):
        logits.masked_fill_(excluded, float("-inf"))
    else:
        logits[rows] = logits[rows].masked_fill_(excluded, float("-inf"))


def _floor_by_sorting(logits: torch.Tensor, sampling: list[SamplingParams]) -> torch.Tensor:
    """Return the smallest logit to keep of each row, [n, 1]: of its top-k, and of their top-p where k is small."""
    counts = torch.tensor([[params.top_k] for params in sampling]).to(logits.device, non_blocking=True)
    best = torch.topk(logits, max(params.top_k for params in sampling), dim=-1).values  # [n, largest k], descending
    last = counts - 1
    if any(params.top_p < 1 and params.top_k <= SORTED for params in sampling):
        # 2: all of them, the infinitely improbable ones included
        shares = _column(best, [params.top_p if params.top_p < 1 else 2.0 for params in sampling])
        weights = best.softmax(dim=-1)
        reached = weights.cumsum(dim=-1, dtype=torch.float64)
        needed = (reached - weights < reached.gather(1, last) * shares).sum(dim=-1, keepdim=True)
        last = torch.minimum(last, (needed - 1).clamp_(min=0))
    return best.gather(1, last)


def _column(like: torch.Tensor, numbers: list[float]) -> torch.Tensor:
    """Return the numbers as [n, 1] beside `like`."""
    return torch.tensor(numbers, dtype=like.dtype).to(like.device, non_blocking=True)[:, None]


def _floor_by_bisection(weights: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the smallest weight of the best tokens that weigh `wanted`, [n, 1]: thirty sums instead of a sort."""
    low = wanted.new_zeros(wanted.shape).view(torch.int32)
    high = low + (ONE_BITS + 1)
    kept = torch.empty_like(weights)
    for _ in range(ONE_BITS.bit_length()):
        middle = (low + high) >> 1
        torch.ge(weights, middle.view(torch.float32), out=kept)
        enough = kept.mul_(weights).sum(dim=-1, keepdim=True) >= wanted
        low, high = middle.where(enough, low), high.where(enough, middle)
    return low.view(torch.float32)


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return numbers in [0, 1), float64 [n], for int64 seeds and positions [n]."""
    mixed = _mix(_mix(seeds) + positions * GOLDEN)
    return _shift(mixed, 11).to(torch.float64) * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = x + GOLDEN
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
