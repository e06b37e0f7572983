"""Log-probabilities of chosen tokens and of the best beside them, looked up on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core.step import Logprobs


@dataclass(frozen=True, slots=True)
class Gathered:
    """Values at m positions, still on the device."""

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
    """How many of the best each position asked for."""


def gather(scores: torch.Tensor, tokens: torch.Tensor, counts: list[int]) -> Gathered:
    """Look up `tokens` [m] and the best `counts[i]` of each row in scores [m, vocab]; -1 means all."""
    vocab = scores.shape[-1]
    counts = [vocab if count < 0 else min(count, vocab) for count in counts]
    values = scores.gather(1, tokens[:, None])
    best = torch.topk(scores, max(counts, default=0), dim=-1)
    # Summed as numbers: counting booleans takes thirty times as long on a CPU. Exact up to 2**24
    # tokens.
    better = torch.gt(scores, values, out=torch.empty_like(scores)).sum(dim=-1)
    ranks = better.to(torch.int64) + 1
    return Gathered(tokens, values[:, 0], ranks, best.indices, best.values, counts)


def to_lists(gathered: Gathered) -> list[Logprobs]:
    """Copy to the host; one entry per position."""
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
