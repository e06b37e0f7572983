"""Steps of an engine that takes no time: what they would take is added to a clock, and what is
guessed right is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from builtin_plugins.speculators.drafting import Drafting
from builtin_plugins.speculators.messages import Granted, Report, column
from core.api import DraftRow, SpeculativeConfig

MOST = 5


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Guesser:
    """Guesses for every row, for rows it has not seen of late after `first_s` more."""

    def __init__(
        self, clock: Clock, *, finds: bool, row_s: float, first_s: float = 0.0, found: bool = True
    ) -> None:
        self.finds = finds
        self._clock = clock
        self._row_s = row_s
        self._first_s = first_s
        self._found = found
        self._owners: dict[int, Any] = {}

    def drafts(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        for each in rows:
            new = self._owners.get(each.row) is not each.owner
            self._owners[each.row] = each.owner
            self._clock.now += self._row_s + new * self._first_s
        return [[1] * each.most if self._found else [] for each in rows]


class Engine:
    """`rows` requests at a time, each of `length` tokens; `step_s` says what a step of so many
    tokens takes.
    """

    def __init__(
        self, clock: Clock, guesser: Guesser, rows: int, length: int, step_s: Callable[[int], float]
    ) -> None:
        self._clock = clock
        self._rows = rows
        self._length = length
        self._step_s = step_s
        self._drafting = Drafting(
            guesser, SpeculativeConfig(method="x", num_speculative_tokens=MOST), rows, str
        )
        self._batch: Any = SimpleNamespace(
            requests=[object() for _ in range(rows)],
            ends=torch.zeros(rows, dtype=torch.int64),
            token_ids=torch.zeros(rows, length + 1 + MOST, dtype=torch.int64),
        )
        group = SimpleNamespace(rank=0)
        model = SimpleNamespace(vocab_size=9)
        self._drafting.attach(SimpleNamespace(batch=self._batch, group=group, model=model))  # type: ignore[arg-type]
        self._wanted: dict[int, int] = {}
        self._draw = Random(0)
        self._step(0.0, prompts=8 * rows)

    def run(self, steps: int, right: float) -> float:
        """Return the tokens per second beside those without guesses, if each guess is right in that
        share of cases.
        """
        begun_s = self._clock.now
        made = 0
        for _ in range(steps):
            made += self._step(right)
        return made / (self._clock.now - begun_s) * self._step_s(self._rows) / self._rows

    def _step(self, right: float, prompts: int = 0) -> int:
        counts = [self._wanted.get(row, 0) for row in range(self._rows)]
        granted = (
            msgspec.msgpack.encode(Granted(list(range(self._rows)), counts))
            if any(counts)
            else None
        )
        rests = self._drafting.rests(self._rows, granted)
        size = self._rows + sum(counts) + prompts
        if not rests:
            self._drafting.begin(granted)
            self._drafting.before_forward(SimpleNamespace(input_ids=range(size)), granted)  # type: ignore[arg-type]
        self._clock.now += self._step_s(size)
        accepted = [1 + self._right(count, right) for count in counts]
        ends = self._batch.ends
        ends += torch.tensor(accepted)
        over = (ends >= self._length).nonzero()[:, 0]
        points = [(row, point) for row, count in enumerate(counts) for point in range(count + 1)]
        sampled = SimpleNamespace(
            rows=SimpleNamespace(
                rows=[row for row, _ in points], points=[point for _, point in points]
            ),
            accepted=torch.tensor(accepted),
            ends=ends.clone().clamp(max=self._length),
        )
        if not rests:
            self._drafting.sampled(sampled, granted)  # type: ignore[arg-type]
        if not rests and (answer := self._drafting.after_sample(granted)) is not None:
            report = msgspec.msgpack.decode(answer, type=Report)
            self._wanted = dict(
                zip(column(report.wanting).tolist(), column(report.wanted).tolist(), strict=True)
            )
        for row in over.tolist():
            self._batch.requests[row], ends[row] = object(), 0
            self._wanted.pop(row, None)
        return sum(accepted)

    def _right(self, count: int, right: float) -> int:
        return next((ahead for ahead in range(count) if self._draw.random() >= right), count)
