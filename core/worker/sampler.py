"""Chooses the next token of every row: temperature, top-k, top-p, and one uniform number per row.

The token is the inverse of the cumulative distribution at that number, in vocabulary order, so a row's token
depends on its own distribution, seed and position and on nothing else in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core.types import SamplingParams
from core.worker.noise import uniform


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
    """Return logits with everything outside each row's top-k and top-p at -inf; changes its argument."""
    vocab = logits.shape[-1]
    limited = [i for i, p in enumerate(sampling) if 0 < p.top_k < vocab]
    if limited:
        ks = [sampling[i].top_k for i in limited]
        _keep_from(logits, limited, _kth_largest(logits[limited], ks))
    nucleus = [i for i, p in enumerate(sampling) if p.top_p < 1]
    if nucleus:
        ps = [sampling[i].top_p for i in nucleus]
        _keep_from(logits, nucleus, _nucleus_floor(logits[nucleus], ps))
    return logits


def _keep_from(logits: torch.Tensor, rows: list[int], floor: torch.Tensor) -> None:
    """Set entries below the row's floor [len(rows), 1] to -inf."""
    if len(rows) == len(logits):
        logits.masked_fill_(logits < floor, float("-inf"))
    else:
        chosen = logits[rows]
        logits[rows] = chosen.masked_fill_(chosen < floor, float("-inf"))


def _kth_largest(logits: torch.Tensor, ks: list[int]) -> torch.Tensor:
    best = torch.topk(logits, max(ks), dim=-1).values  # [n, max k], descending
    return best.gather(1, torch.tensor(ks, device=logits.device)[:, None] - 1)


def _nucleus_floor(logits: torch.Tensor, ps: list[float]) -> torch.Tensor:
    """Return the smallest logit of the smallest set of best tokens whose probability reaches p."""
    best = logits.sort(dim=-1, descending=True).values
    probs = best.softmax(dim=-1, dtype=torch.float64)
    before = probs.cumsum(dim=-1) - probs  # probability of everything better
    wanted = torch.tensor(ps, dtype=torch.float64, device=logits.device)[:, None]
    last = (before < wanted).sum(dim=-1, keepdim=True) - 1
    return best.gather(1, last.clamp_(min=0))


def draw(logits: torch.Tensor, how: Draw) -> torch.Tensor:
    """Return one token per row, [n] int64, from final logits [n, vocab]; excluded tokens are at -inf."""
    probs = logits.softmax(dim=-1, dtype=torch.float32)
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    target = uniform(how.seeds, how.positions)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    # Rounding may run past the last possible token; the best one is then as good a choice as any.
    possible = probs.gather(1, tokens) > 0
    return torch.where(possible, tokens, logits.argmax(dim=-1, keepdim=True))[:, 0]
