"""A step's result while it is still on the device; `get` is the only copy to the host."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from core.errors import NO_CHOICE
from core.models.ops.logprobs import Gathered, to_lists
from core.step import Logprobs, StepResult
from core.types.pooling import Pooled

_NON_FINITE: Final = -1
_NO_CHOICE: Final = -2
"""What stands for a token there."""
NON_FINITE = "the model produced non-finite numbers for this request"


@dataclass(slots=True)
class PendingResult:
    """What one step produced, not yet read back."""

    step: int
    errors: dict[int, str]
    rows: list[int] = field(default_factory=list)
    """That of each token: rows with guesses stand here several times."""
    tokens: torch.Tensor | None = None
    """[n] int64, parallel to rows."""
    finite: torch.Tensor | None = None
    """[n] bool: whether the row's logits were numbers."""
    possible: torch.Tensor | None = None
    """[n] bool: whether anything was left to choose from; None: as `finite`."""
    points: list[int] | None = None
    """Guesses before each token; None: there are none."""
    accepted: torch.Tensor | None = None
    """[rows that sample] int64: tokens that hold; None: one each."""
    logprobs: tuple[list[int], Gathered] | None = None
    """Indices into `rows` of those that asked, and theirs."""
    prompt_logprobs: list[tuple[int, Gathered]] = field(default_factory=list)
    """Consecutive positions of rows that asked; a row may be named several times."""
    payloads: dict[str, bytes] = field(default_factory=dict)
    pooled: dict[int, torch.Tensor] = field(default_factory=dict)
    """What a pooling model made of prompts, by row."""
    _numbers: torch.Tensor | None = None
    """Tokens, or what is wrong with them, then `accepted`."""

    def leave(self) -> None:
        """Send off what is needed of every row, in one piece; the last of the step's work on the
        device.
        """
        if self.tokens is not None:
            numbers = self.tokens
            if self.possible is not None:
                numbers = numbers.where(self.possible, _NO_CHOICE)
            if self.finite is not None:
                numbers = numbers.where(self.finite, _NON_FINITE)
            if self.accepted is not None:
                numbers = torch.cat((numbers, self.accepted))
            self._numbers = numbers.to("cpu", non_blocking=True)

    def counts(self) -> npt.NDArray[np.int64] | None:
        """Return how many tokens of each row hold, once the device has come so far; None: one each."""
        if self.accepted is None or self._numbers is None:
            return None
        return self._numbers.numpy()[-len(self.accepted) :]

    def get(self) -> StepResult:
        """Return plain data, once the device has come so far."""
        rows = self.rows
        errors = self.errors
        accepted = []
        numbers = (
            np.zeros(0, dtype=np.int64)
            if self._numbers is None
            else self._numbers.numpy()[: len(rows)]
        )
        tokens = numbers.tolist()
        holds = None
        if errors or self.points is not None or numbers.min(initial=0) < 0:
            holds, errors = self._holding(numbers)
            tokens = [token for token, held in zip(tokens, holds, strict=True) if held]
            counts = Counter(row for row, held in zip(rows, holds, strict=True) if held)
            rows = list(dict.fromkeys(rows))
            accepted = [counts[row] for row in rows]
        logprobs: dict[int, list[Logprobs]] = {}
        if self.logprobs is not None:
            for i, entry in zip(self.logprobs[0], to_lists(self.logprobs[1]), strict=True):
                if holds is None or holds[i]:
                    logprobs.setdefault(self.rows[i], []).append(entry)
        prompt: dict[int, list[Logprobs]] = {}
        for row, gathered in self.prompt_logprobs:
            prompt.setdefault(row, []).extend(to_lists(gathered))
        payloads = {name: [payload] for name, payload in self.payloads.items()}
        kept = {
            row: numbers.numpy(force=True)
            for row, numbers in self.pooled.items()
            if row not in errors
        }
        pooled = {row: Pooled(numbers.tobytes(), numbers.shape) for row, numbers in kept.items()}
        return StepResult(
            self.step, rows, tokens, logprobs, prompt, errors, payloads, accepted, pooled
        )

    def _holding(self, numbers: npt.NDArray[np.int64]) -> tuple[list[bool], dict[int, str]]:
        """Return which tokens hold, and the rows that failed."""
        holds = np.ones(len(self.rows), dtype=np.bool_)
        counts = self.counts()
        if self.points is not None and counts is not None:
            points = np.asarray(self.points)
            holds = points < counts[np.cumsum(points == 0) - 1]
        errors = dict(self.errors)
        for i in np.flatnonzero(holds & (numbers < 0)):
            errors.setdefault(self.rows[i], NON_FINITE if numbers[i] == _NON_FINITE else NO_CHOICE)
        return [
            bool(held) and row not in errors for row, held in zip(self.rows, holds, strict=True)
        ], errors
