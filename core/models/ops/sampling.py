"""Sampling ops in torch: greedy choice, top-k and top-p truncation, random sampling and logprobs.

A sampled token is the inverse of the cumulative distribution, in vocabulary order, at one uniform
number per row. A row's token depends only on its own logits, parameters, seed and position, so
sampling is batch invariant.

The uniform numbers are SplitMix64 (Steele, Lea, Flood 2014) over a mixed seed and equal on every
device. Integer arithmetic wraps modulo 2**64, as signed 64-bit tensors do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from core.step import Logprobs

Numbers = Sequence[int] | Sequence[float] | npt.NDArray[Any]
MAX_SORTED_TOP_K: Final = 1024
"""Largest top-k with sorted candidates; a larger one uses bisection."""
MIN_TOP_P: Final = 1e-30
"""Lower bound of top-p; a float32 can hold it, so the best token always stays."""
ONE_BITS: Final = 0x3F800000
"""Bits of 1.0 as a float32; non-negative floats are ordered like their bits."""
SPAN: Final = 128
"""Adjacent vocabulary entries reduced to one number first, which makes the second pass cheap."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
FIRST: Final = _signed(0xBF58476D1CE4E5B9)
SECOND: Final = _signed(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class UniformParams:
    """Truncation parameters of rows that use the same algorithm."""

    rows: torch.Tensor | None
    """[m] int64 row indices; None: all rows."""
    counts: torch.Tensor
    """[m, 1] int64: top-k of each row."""
    shares: torch.Tensor
    """[m, 1] float32: top-p of each row; 2 where top-p is off."""
    max_top_k: int
    """Largest top-k."""
    nucleus: bool
    """Whether top-p is on for any row."""


class Truncation:
    """Top-k and top-p of a batch of rows, on the device.

    Built once for rows that stay together. `top_k` [n] int64 (0: all tokens) and `top_p` [n]
    float32 (1: all tokens) are the requested values; the torch implementation reads the groups
    below.
    """

    __slots__ = ("few", "many", "nucleus", "top_k", "top_p")

    def __init__(
        self, top_k: Numbers, top_p: Numbers, vocab_size: int, device: torch.device
    ) -> None:
        counts = np.asarray(top_k, dtype=np.int64)
        shares = np.asarray(top_p, dtype=np.float64)
        shares = shares.clip(MIN_TOP_P, 1.0)
        limited = (counts > 0) & (counts < vocab_size)
        small = limited & (counts <= MAX_SORTED_TOP_K)
        self.top_k = torch.from_numpy(counts).to(device, non_blocking=True)
        self.top_p = torch.from_numpy(shares.astype(np.float32)).to(device, non_blocking=True)

        def group_of(
            chosen: npt.NDArray[np.bool_], share: npt.NDArray[np.float64]
        ) -> UniformParams | None:
            indices = np.flatnonzero(chosen)
            if not len(indices):
                return None
            rows = (
                None
                if len(indices) == len(chosen)
                else torch.from_numpy(indices).to(device, non_blocking=True)
            )
            own = torch.from_numpy(counts[indices][:, None]).to(device, non_blocking=True)
            weights = torch.from_numpy(share[indices][:, None].astype(np.float32)).to(
                device, non_blocking=True
            )
            return UniformParams(
                rows, own, weights, int(counts[indices].max()), bool((share[indices] < 1).any())
            )

        self.few = group_of(small, np.where(shares < 1, shares, 2.0))
        """Rows with a small top-k; their top-p is applied to the sorted candidates."""
        self.many = group_of(limited & ~small, np.full_like(shares, 2.0))
        self.nucleus = group_of((shares < 1) & ~small, shares)
        """Rows with top-p applied by bisection over all remaining tokens."""

    @property
    def is_active(self) -> bool:
        """Whether any row is truncated."""
        return any(group is not None for group in (self.few, self.many, self.nucleus))


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest logit and its token per row, [n] each.

    Ties return the lowest index; NaN counts as the largest value.
    """
    span = _by_span(logits, lambda part: part.amax(dim=-1)).argmax(dim=-1, keepdim=True)  # [n, 1]
    values, indices = _inside(logits, span).max(dim=-1)
    return values, span[:, 0] * SPAN + indices


def truncate(logits: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Return logits with tokens outside each row's top-k and top-p at -inf; may modify its
    argument.

    Ties with the last remaining token remain as well.
    """
    for group in (truncation.few, truncation.many):
        if group is not None:
            part = logits if group.rows is None else logits[group.rows]
            _exclude(logits, group, part < _floor_by_sorting(part, group))
    group = truncation.nucleus
    if group is not None:
        weights = (logits if group.rows is None else logits[group.rows]).softmax(dim=-1)
        target_mass = weights.sum(dim=-1, keepdim=True) * group.shares
        _exclude(logits, group, weights < _floor_by_bisection(weights, target_mass))
    return logits


def draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return one sampled token per row, [n] int64, from final logits [n, vocab].

    Excluded tokens are at -inf. `seeds` and `positions` (of the sampled tokens) are [n] int64.
    """
    weights = logits.softmax(dim=-1)
    ends = _by_span(weights, lambda part: part.sum(dim=-1)).cumsum(
        dim=-1, dtype=torch.float64
    )  # [n, spans]
    target = uniform(seeds, positions)[:, None] * ends[:, -1:]
    span = torch.searchsorted(ends, target, right=True).clamp_(max=ends.shape[-1] - 1)  # [n, 1]
    rest = target - torch.where(span > 0, ends.gather(1, (span - 1).clamp(min=0)), 0.0)
    inside = _inside(weights, span).cumsum(dim=-1, dtype=torch.float64)  # [n, SPAN]
    tokens = (span * SPAN + torch.searchsorted(inside, rest, right=True)).clamp_(
        max=logits.shape[-1] - 1
    )[:, 0]
    # Rounding may run past the last possible token; use the max_top_k likely one instead.
    return tokens.where(weights.gather(1, tokens[:, None])[:, 0] > 0, best(logits)[1])


def _by_span(values: torch.Tensor, reduce: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the reduction of each span of values [n, vocab], [n, spans]; the last span may be
    shorter.
    """
    spans, rest = divmod(values.shape[-1], SPAN)
    parts = reduce(values[:, : spans * SPAN].view(values.shape[0], spans, SPAN))
    return torch.cat((parts, reduce(values[:, None, spans * SPAN :])), dim=-1) if rest else parts


def _inside(values: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """Return the values of one span per row, [n, SPAN]; indices past the vocabulary repeat its
    end.
    """
    indices = span * SPAN + torch.arange(SPAN, device=span.device)
    return values.gather(1, indices.clamp_(max=values.shape[-1] - 1))


def _exclude(logits: torch.Tensor, group: UniformParams, excluded: torch.Tensor) -> None:
    """Set excluded tokens [m, vocab] of the group's rows to -inf."""
    if group.rows is None:
        logits.masked_fill_(excluded, float("-inf"))
    else:
        logits[group.rows] = logits[group.rows].masked_fill_(excluded, float("-inf"))


def _floor_by_sorting(logits: torch.Tensor, group: UniformParams) -> torch.Tensor:
    """Return the smallest remaining logit of each row, [m, 1], after top-k and the top-p
    within it.
    """
    found = torch.topk(logits, group.max_top_k, dim=-1).values  # [m, largest k], descending
    last = group.counts - 1
    if group.nucleus:
        weights = found.softmax(dim=-1)
        reached = weights.cumsum(dim=-1, dtype=torch.float64)
        needed = (reached - weights < reached.gather(1, last) * group.shares).sum(
            dim=-1, keepdim=True
        )
        last = torch.minimum(last, (needed - 1).clamp_(min=0))
    return found.gather(1, last)


def _floor_by_bisection(weights: torch.Tensor, target_mass: torch.Tensor) -> torch.Tensor:
    """Return the smallest weight of the nucleus that reaches `target_mass`, [n, 1], by bisection
    over 30 sums.
    """
    low = target_mass.new_zeros(target_mass.shape).view(torch.int32)
    high = low + (ONE_BITS + 1)
    remaining = torch.empty_like(weights)
    for _ in range(ONE_BITS.bit_length()):
        middle = (low + high) >> 1
        torch.ge(weights, middle.view(torch.float32), out=remaining)
        enough = remaining.mul_(weights).sum(dim=-1, keepdim=True) >= target_mass
        low = middle.where(enough, low)
        high = high.where(enough, middle)
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


@dataclass(frozen=True, slots=True)
class GatheredLogprobs:
    """Logprobs at m positions, on the device."""

    tokens: torch.Tensor
    """[m] int64."""
    values: torch.Tensor
    """[m] float32."""
    ranks: torch.Tensor
    """[m] int64."""
    best_tokens: torch.Tensor
    """[m, k] int64, best first."""
    best_values: torch.Tensor
    counts: list[int]
    """Requested top logprobs of each position."""


def gather_logprobs(
    scores: torch.Tensor, tokens: torch.Tensor, counts: list[int]
) -> GatheredLogprobs:
    """Return logprobs of `tokens` [m] and the top `counts[i]` of each row of scores [m, vocab].

    A count of -1 means the whole vocabulary.
    """
    vocab = scores.shape[-1]
    counts = [vocab if count < 0 else min(count, vocab) for count in counts]
    values = scores.gather(1, tokens[:, None])
    best = torch.topk(scores, max(counts, default=0), dim=-1)
    # Summed as floats: summing booleans is thirty times slower on a CPU. Exact up to 2**24.
    better = torch.gt(scores, values, out=torch.empty_like(scores)).sum(dim=-1)
    ranks = better.to(torch.int64) + 1
    return GatheredLogprobs(tokens, values[:, 0], ranks, best.indices, best.values, counts)


def logprobs_to_lists(gathered: GatheredLogprobs) -> list[Logprobs]:
    """Copy logprobs to the host; one entry per position."""
    tokens = gathered.tokens.tolist()
    values = gathered.values.tolist()
    ranks = gathered.ranks.tolist()
    best_tokens = gathered.best_tokens.tolist()
    best_values = gathered.best_values.tolist()
    return [
        Logprobs(
            [tokens[i], *best_tokens[i][:count]], [values[i], *best_values[i][:count]], ranks[i]
        )
        for i, count in enumerate(gathered.counts)
    ]
