"""Chooses the next token of every row: the ops `best`, `truncate` and `draw`, and what they have in
common.

The token is the inverse of the cumulative distribution at one uniform number per row, in vocabulary
order. What a row gets depends on its own logits, parameters, seed and position: no step takes
another path because of its neighbours.

The numbers are SplitMix64 (Steele, Lea, Flood 2014) over a mixed seed, alike on every device;
integer arithmetic wraps modulo 2**64, which signed 64-bit tensors do as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

Numbers = Sequence[int] | Sequence[float] | npt.NDArray[Any]
SORTED: Final = 1024
"""Up to this top-k the candidates are sorted, and the nucleus is found among them; beyond it by
bisection.
"""
LEAST_SHARE: Final = 1e-30
"""Smaller shares are this one, which a float32 still holds: the best token always stays."""
ONE_BITS: Final = 0x3F800000
"""1.0 as a float32's bits; non-negative floats are ordered like their bits."""
SPAN: Final = 128
"""Neighbouring tokens that are reduced to one number first: the next step, over spans, is then
cheap.
"""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
FIRST: Final = _signed(0xBF58476D1CE4E5B9)
SECOND: Final = _signed(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Alike:
    """Rows that are narrowed in the same way."""

    rows: torch.Tensor | None
    """[m] int64; None: all."""
    counts: torch.Tensor
    """[m, 1] int64: how many tokens may stay."""
    shares: torch.Tensor
    """[m, 1] float32: of the probability; 2 where all of it may."""
    most: int
    """Largest of the counts."""
    nucleus: bool
    """Some share is less than all."""


class Cut:
    """How far the choice of rows is narrowed. Made once for rows that stay together: steps find
    everything on the device.

    `top_k` [n] int64 (0: all tokens) and `top_p` [n] float32 (1: all of them) are what requests
    say; the groups of rows below are what the implementation in torch makes of them.
    """

    __slots__ = ("few", "many", "nucleus", "top_k", "top_p")

    def __init__(
        self, top_k: Numbers, top_p: Numbers, vocab_size: int, device: torch.device
    ) -> None:
        counts = np.asarray(top_k, dtype=np.int64)
        shares = np.asarray(top_p, dtype=np.float64)
        shares = shares.clip(LEAST_SHARE, 1.0)
        limited = (counts > 0) & (counts < vocab_size)
        small = limited & (counts <= SORTED)
        self.top_k = torch.from_numpy(counts).to(device, non_blocking=True)
        self.top_p = torch.from_numpy(shares.astype(np.float32)).to(device, non_blocking=True)

        def alike(chosen: npt.NDArray[np.bool_], share: npt.NDArray[np.float64]) -> Alike | None:
            places = np.flatnonzero(chosen)
            if not len(places):
                return None
            rows = (
                None
                if len(places) == len(chosen)
                else torch.from_numpy(places).to(device, non_blocking=True)
            )
            own = torch.from_numpy(counts[places][:, None]).to(device, non_blocking=True)
            weights = torch.from_numpy(share[places][:, None].astype(np.float32)).to(
                device, non_blocking=True
            )
            return Alike(
                rows, own, weights, int(counts[places].max()), bool((share[places] < 1).any())
            )

        self.few = alike(small, np.where(shares < 1, shares, 2.0))
        """Of those with few tokens, the nucleus is found among them."""
        self.many = alike(limited & ~small, np.full_like(shares, 2.0))
        self.nucleus = alike((shares < 1) & ~small, shares)
        """Those whose nucleus is found among all tokens that are left."""

    @property
    def narrows(self) -> bool:
        """Say whether anything is left out."""
        return any(group is not None for group in (self.few, self.many, self.nucleus))


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best logit and its token per row, [n] each; the first of equals, NaN before all."""
    span = _by_span(logits, lambda part: part.amax(dim=-1)).argmax(dim=-1, keepdim=True)  # [n, 1]
    values, places = _inside(logits, span).max(dim=-1)
    return values, span[:, 0] * SPAN + places


def truncate(logits: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Return logits with everything outside each row's top-k and top-p at -inf; may change its
    argument.

    Tokens as good as the last one kept are kept as well.
    """
    for group in (cut.few, cut.many):
        if group is not None:
            part = logits if group.rows is None else logits[group.rows]
            _exclude(logits, group, part < _floor_by_sorting(part, group))
    group = cut.nucleus
    if group is not None:
        weights = (logits if group.rows is None else logits[group.rows]).softmax(dim=-1)
        wanted = weights.sum(dim=-1, keepdim=True) * group.shares
        _exclude(logits, group, weights < _floor_by_bisection(weights, wanted))
    return logits


def draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return one token per row, [n] int64, from final logits [n, vocab]; excluded tokens are at
    -inf.

    `seeds` and `positions` (of the tokens being chosen) are [n] int64.
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
    # Rounding may run past the last possible token; the best one is then as good a choice as any.
    return tokens.where(weights.gather(1, tokens[:, None])[:, 0] > 0, best(logits)[1])


def _by_span(values: torch.Tensor, reduce: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the reduction of each span of values [n, vocab], [n, spans]; the last span may be
    shorter.
    """
    spans, rest = divmod(values.shape[-1], SPAN)
    parts = reduce(values[:, : spans * SPAN].view(values.shape[0], spans, SPAN))
    return torch.cat((parts, reduce(values[:, None, spans * SPAN :])), dim=-1) if rest else parts


def _inside(values: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """Return the values of one span per row, [n, SPAN]; past the last token it is said again."""
    places = span * SPAN + torch.arange(SPAN, device=span.device)
    return values.gather(1, places.clamp_(max=values.shape[-1] - 1))


def _exclude(logits: torch.Tensor, group: Alike, excluded: torch.Tensor) -> None:
    """Set excluded tokens [m, vocab] of the group's rows to -inf."""
    if group.rows is None:
        logits.masked_fill_(excluded, float("-inf"))
    else:
        logits[group.rows] = logits[group.rows].masked_fill_(excluded, float("-inf"))


def _floor_by_sorting(logits: torch.Tensor, group: Alike) -> torch.Tensor:
    """Return the smallest logit to keep of each row, [m, 1]: of its top-k, and of their top-p where
    k is small.
    """
    found = torch.topk(logits, group.most, dim=-1).values  # [m, largest k], descending
    last = group.counts - 1
    if group.nucleus:
        weights = found.softmax(dim=-1)
        reached = weights.cumsum(dim=-1, dtype=torch.float64)
        needed = (reached - weights < reached.gather(1, last) * group.shares).sum(
            dim=-1, keepdim=True
        )
        last = torch.minimum(last, (needed - 1).clamp_(min=0))
    return found.gather(1, last)


def _floor_by_bisection(weights: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the smallest weight of the best tokens that weigh `wanted`, [n, 1]: thirty sums
    instead of a sort.
    """
    low = wanted.new_zeros(wanted.shape).view(torch.int32)
    high = low + (ONE_BITS + 1)
    kept = torch.empty_like(weights)
    for _ in range(ONE_BITS.bit_length()):
        middle = (low + high) >> 1
        torch.ge(weights, middle.view(torch.float32), out=kept)
        enough = kept.mul_(weights).sum(dim=-1, keepdim=True) >= wanted
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
