"""A step's result while it is still on the device, log-probabilities included; `get` is the only copy to the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from core.pooling_types import Pooled
from core.step import Logprobs, StepResult

NON_FINITE = "the model produced non-finite numbers for this request"
NO_CHOICE = (
    "every token is excluded, so none could be generated; allowed_token_ids, bad_words, logit_bias, min_tokens "
    "and structured_outputs of this request leave nothing"
)


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
    # Summed as numbers: counting booleans takes thirty times as long on a CPU. Exact up to 2**24 tokens.
    better = torch.gt(scores, values, out=torch.empty_like(scores)).sum(dim=-1)
    ranks = better.to(torch.int64) + 1
    return Gathered(tokens, values[:, 0], ranks, best.indices, best.values, counts)


def to_lists(gathered: Gathered) -> list[Logprobs]:
    """Copy to the host; one entry per position."""
    tokens, values, ranks = gathered.tokens.tolist(), gathered.values.tolist(), gathered.ranks.tolist()
    best_tokens, best_values = gathered.best_tokens.tolist(), gathered.best_values.tolist()
    return [
        Logprobs([tokens[i], *best_tokens[i][:count]], [values[i], *best_values[i][:count]], ranks[i])
        for i, count in enumerate(gathered.counts)
    ]


@dataclass(slots=True)
class PendingResult:
    """What one step produced, not yet read back."""

    step: int
    errors: dict[int, str]
    rows: list[int] = field(default_factory=list)
    tokens: torch.Tensor | None = None
    """[n] int64, parallel to rows."""
    finite: torch.Tensor | None = None
    """[n] bool: whether the row's logits were numbers."""
    possible: torch.Tensor | None = None
    """[n] bool: whether anything was left to choose from."""
    logprobs: tuple[list[int], Gathered] | None = None
    """Rows that asked, and theirs."""
    prompt_logprobs: list[tuple[int, Gathered]] = field(default_factory=list)
    """Consecutive positions of rows that asked; a row may be named several times."""
    payloads: dict[str, bytes] = field(default_factory=dict)
    pooled: dict[int, torch.Tensor] = field(default_factory=dict)
    """What a pooling model made of prompts, by row."""

    def get(self) -> StepResult:
        """Wait for the device and return plain data."""
        tokens: list[int] = []
        errors = dict(self.errors)
        if self.tokens is not None and self.finite is not None and self.possible is not None:
            for row, finite, possible in zip(self.rows, self.finite.tolist(), self.possible.tolist(), strict=True):
                if row not in errors and not (finite and possible):
                    errors[row] = NO_CHOICE if finite else NON_FINITE
            tokens = self.tokens.tolist()
        accepted = []
        if errors:
            tokens = [token for row, token in zip(self.rows, tokens, strict=True) if row not in errors]
            accepted = [int(row not in errors) for row in self.rows]
        logprobs: dict[int, list[Logprobs]] = {}
        if self.logprobs is not None:
            asked, gathered = self.logprobs
            logprobs = {row: [entry] for row, entry in zip(asked, to_lists(gathered), strict=True) if row not in errors}
        prompt: dict[int, list[Logprobs]] = {}
        for row, gathered in self.prompt_logprobs:
            prompt.setdefault(row, []).extend(to_lists(gathered))
        kept = {row: numbers.numpy(force=True) for row, numbers in self.pooled.items() if row not in errors}
        pooled = {row: Pooled(numbers.tobytes(), numbers.shape) for row, numbers in kept.items()}
        return StepResult(self.step, self.rows, tokens, logprobs, prompt, errors, self.payloads, accepted, pooled)
