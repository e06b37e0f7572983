"""A step's result on the device; `get` is its only copy to the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from core.errors import NO_CHOICE, NON_FINITE
from core.models.ops.sampling import GatheredLogprobs, logprobs_to_lists
from core.step import Logprobs, StepResult
from core.types.pooling import Pooled

_NON_FINITE: Final = -1
"""Token id that marks non-finite logits."""
_NO_CHOICE: Final = -2
"""Token id that marks logits without any allowed token."""


@dataclass(slots=True)
class PendingResult:
    """The output of one step, not yet copied to the host."""

    step: int
    errors: dict[int, str]
    rows: list[int] = field(default_factory=list)
    """Row of each token; rows with draft tokens appear several times."""
    tokens: torch.Tensor | None = None
    """[n] int64, parallel to `rows`."""
    finite: torch.Tensor | None = None
    """[n] bool: whether the row's logits are finite."""
    possible: torch.Tensor | None = None
    """[n] bool: whether any token was allowed; None: as `finite`."""
    points: list[int] | None = None
    """Draft tokens before each token; None without draft tokens."""
    accepted: torch.Tensor | None = None
    """[sampling rows] int64: accepted tokens per row; None: one each."""
    logprobs: tuple[list[int], GatheredLogprobs] | None = None
    """Indices into `rows` of tokens with log-probabilities, and these."""
    prompt_logprobs: list[tuple[int, GatheredLogprobs]] = field(default_factory=list)
    """(row, entries of consecutive prompt positions); a row may appear
    several times.
    """
    payloads: dict[str, bytes] = field(default_factory=dict)
    pooled: dict[int, torch.Tensor] = field(default_factory=dict)
    """Output of a pooling model by row."""
    wait: Callable[[], None] = lambda: None
    """Waits for the last pipeline stage; raises `LastStageFailed` if the
    step failed there.
    """
    _numbers: torch.Tensor | None = None
    """Host copy of `tokens`, with markers for failed rows, then
    `accepted`.
    """

    def start_copy(self) -> None:
        """Start the device-to-host copy of the tokens; the last device work
        of the step.
        """
        if self.tokens is None:
            return
        numbers = self.tokens
        if self.possible is not None:
            numbers = numbers.where(self.possible, _NO_CHOICE)
        if self.finite is not None:
            numbers = numbers.where(self.finite, _NON_FINITE)
        if self.accepted is not None:
            numbers = torch.cat((numbers, self.accepted))
        self._numbers = numbers.to("cpu", non_blocking=True)

    def num_accepted(self) -> npt.NDArray[np.int64] | None:
        """Return the accepted tokens per row, once the copy is done; None:
        one each.
        """
        if self.accepted is None or self._numbers is None:
            return None
        return self._numbers.numpy()[-len(self.accepted) :]

    def get(self) -> StepResult:
        """Return plain data, once the copy is done."""
        self.wait()
        rows = self.rows
        errors = self.errors
        accepted: list[int] = []
        is_accepted: list[bool] | None = None
        numbers = np.zeros(0, dtype=np.int64)
        if self._numbers is not None:
            numbers = self._numbers.numpy()[: len(rows)]
        tokens = numbers.tolist()
        if errors or self.points is not None or numbers.min(initial=0) < 0:
            is_accepted, errors = self._accept(numbers)
            pairs = zip(rows, tokens, is_accepted, strict=True)
            held = [(row, token) for row, token, accept in pairs if accept]
            counts = Counter(row for row, _ in held)
            tokens = [token for _, token in held]
            rows = list(dict.fromkeys(rows))
            accepted = [counts[row] for row in rows]
        prompt: dict[int, list[Logprobs]] = {}
        for row, gathered in self.prompt_logprobs:
            prompt.setdefault(row, []).extend(logprobs_to_lists(gathered))
        return StepResult(
            step=self.step,
            rows=rows,
            tokens=tokens,
            logprobs=self._logprobs(is_accepted),
            prompt_logprobs=prompt,
            errors=errors,
            payloads={name: [payload] for name, payload in self.payloads.items()},
            accepted=accepted,
            pooled=self._pooled(errors),
        )

    def _logprobs(self, is_accepted: list[bool] | None) -> dict[int, list[Logprobs]]:
        """Return the log-probabilities of the accepted tokens by row."""
        logprobs: dict[int, list[Logprobs]] = {}
        if self.logprobs is None:
            return logprobs
        indices, gathered = self.logprobs
        for i, entry in zip(indices, logprobs_to_lists(gathered), strict=True):
            if is_accepted is None or is_accepted[i]:
                logprobs.setdefault(self.rows[i], []).append(entry)
        return logprobs

    def _pooled(self, errors: dict[int, str]) -> dict[int, Pooled]:
        pooled = {}
        for row, tensor in self.pooled.items():
            if row not in errors:
                numbers = tensor.numpy(force=True)
                pooled[row] = Pooled(numbers.tobytes(), numbers.shape)
        return pooled

    def _accept(self, numbers: npt.NDArray[np.int64]) -> tuple[list[bool], dict[int, str]]:
        """Return which tokens are accepted, and the errors of failed rows."""
        is_accepted = np.ones(len(self.rows), dtype=np.bool_)
        counts = self.num_accepted()
        if self.points is not None and counts is not None:
            points = np.asarray(self.points)
            is_accepted = points < counts[np.cumsum(points == 0) - 1]
        errors = dict(self.errors)
        for i in np.flatnonzero(is_accepted & (numbers < 0)):
            message = NON_FINITE if numbers[i] == _NON_FINITE else NO_CHOICE
            errors.setdefault(self.rows[i], message)
        rows = zip(self.rows, is_accepted, strict=True)
        return [bool(accept) and row not in errors for row, accept in rows], errors
