"""An engine with simulated step times and randomly accepted draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from builtin_plugins.features.speculation.messages import Granted, Report, column
from builtin_plugins.features.speculation.worker import SpeculationWorker
from builtin_plugins.speculators.api import DraftRow, SpeculativeConfig

MAX_DRAFT_TOKENS = 5


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class FakeSpeculator:
    """Drafts for every row. New requests take `first_s` more."""

    def __init__(
        self,
        clock: Clock,
        *,
        is_lookup: bool,
        row_s: float,
        first_s: float = 0.0,
        found: bool = True,
    ) -> None:
        self.is_lookup = is_lookup
        self._clock = clock
        self._row_s = row_s
        self._first_s = first_s
        self._found = found
        self._owners: dict[int, Any] = {}

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        for each in rows:
            new = self._owners.get(each.row) is not each.owner
            self._owners[each.row] = each.owner
            self._clock.now += self._row_s + new * self._first_s
        return [[1] * each.max_draft_tokens if self._found else [] for each in rows]


class Engine:
    """Runs `rows` requests of `length` tokens. `step_s`: step time by number of tokens."""

    def __init__(
        self,
        clock: Clock,
        speculator: FakeSpeculator,
        rows: int,
        length: int,
        step_s: Callable[[int], float],
    ) -> None:
        self._clock = clock
        self._rows = rows
        self._length = length
        self._step_s = step_s
        settings = SpeculativeConfig(method="x", num_speculative_tokens=MAX_DRAFT_TOKENS)
        self._worker = SpeculationWorker(speculator, settings, rows, str)
        self._batch: Any = SimpleNamespace(
            requests=[object() for _ in range(rows)],
            next_positions=torch.zeros(rows, dtype=torch.int64),
            token_ids=torch.zeros(rows, length + 1 + MAX_DRAFT_TOKENS, dtype=torch.int64),
        )
        group = SimpleNamespace(rank=0)
        model = SimpleNamespace(vocab_size=9)
        parts: Any = SimpleNamespace(batch=self._batch, group=group, model=model)
        self._worker.attach(parts)
        self._next_counts: dict[int, int] = {}
        self._draw = Random(0)
        self._step(0.0, prompts=8 * rows)

    def run(self, steps: int, acceptance_rate: float) -> float:
        """Return the speedup over no speculation, at an acceptance rate."""
        begun_s = self._clock.now
        num_tokens = 0
        for _ in range(steps):
            num_tokens += self._step(acceptance_rate)
        return num_tokens / (self._clock.now - begun_s) * self._step_s(self._rows) / self._rows

    def _step(self, acceptance_rate: float, prompts: int = 0) -> int:
        counts = [self._next_counts.get(row, 0) for row in range(self._rows)]
        granted = (
            msgspec.msgpack.encode(Granted(list(range(self._rows)), counts))
            if any(counts)
            else None
        )
        skips = self._worker.skips_step(self._rows, granted)
        size = self._rows + sum(counts) + prompts
        if not skips:
            self._worker.begin(granted)
            forward_batch: Any = SimpleNamespace(input_ids=range(size), positions=None)
            self._worker.before_forward(forward_batch, granted)
        self._clock.now += self._step_s(size)
        accepted = [1 + self._num_accepted(count, acceptance_rate) for count in counts]
        positions = self._batch.next_positions
        positions += torch.tensor(accepted)
        over = (positions >= self._length).nonzero()[:, 0]
        points = [(row, point) for row, count in enumerate(counts) for point in range(count + 1)]
        sampled = SimpleNamespace(
            rows=SimpleNamespace(
                rows=[row for row, _ in points], points=[point for _, point in points]
            ),
            accepted=torch.tensor(accepted),
            next_positions=positions.clone().clamp(max=self._length),
        )
        if not skips:
            self._worker.sampled(sampled, granted)  # type: ignore[arg-type]
        if not skips and (answer := self._worker.after_sample(granted)) is not None:
            report = msgspec.msgpack.decode(answer, type=Report)
            self._next_counts = dict(
                zip(
                    column(report.next_rows).tolist(),
                    column(report.next_counts).tolist(),
                    strict=True,
                )
            )
        for row in over.tolist():
            self._batch.requests[row] = object()
            positions[row] = 0
            self._next_counts.pop(row, None)
        return sum(accepted)

    def _num_accepted(self, count: int, acceptance_rate: float) -> int:
        return next((i for i in range(count) if self._draw.random() >= acceptance_rate), count)
