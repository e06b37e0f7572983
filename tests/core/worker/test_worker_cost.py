"""What a worker does in a step of decoding does not grow with the rows: operations and calls are
counted, not timed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.step import NewRow, StepPlan
from core.types import SamplingParams
from tests.core.worker.step_driver import BLOCK, MAX_LEN, Driver

MAX_OPERATIONS = {"greedy": 42, "mixed": 54}
MAX_CALLS = {"greedy": 190, "mixed": 190}
"""About twice the measured numbers."""


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts tensor operations."""

    num = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.num += 1
        return func(*args, **(kwargs or {}))


class Stub:
    """A model that computes nothing."""

    vocab_size = 64

    def __init__(self, rows: int) -> None:
        self._hidden = torch.zeros(4 * rows, 8)
        self._logits = torch.zeros(rows, 64)

    def __call__(self, batch: Any) -> torch.Tensor:
        return self._hidden[: len(batch.input_ids)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits


def params(kind: str, row: int) -> SamplingParams:
    if kind == "greedy":
        return SamplingParams(temperature=0)
    return SamplingParams(
        temperature=0.5 + row / 100, top_k=1 + row % 40, top_p=0.5 + row % 50 / 101
    )


def cost(kind: str, rows: int) -> tuple[int, int]:
    """Return (tensor operations, Python calls) of one step of a warm worker."""
    driver = Driver(max_num_seqs=rows)
    worker: Any = driver.worker
    stub = Stub(rows)
    tokens = torch.zeros(rows, dtype=torch.int64)
    values = torch.zeros(rows)
    steps = worker._steps
    steps.forward = stub
    steps.stage._model = stub
    worker._backend.prepare = lambda inputs: inputs
    steps.stage._best = lambda logits: (values, tokens)
    steps.stage._truncate = lambda logits, cut: logits
    steps.stage._draw = lambda logits, *rest: tokens
    each = MAX_LEN // BLOCK
    blocks = [list(range(1 + r * each, 1 + (r + 1) * each)) for r in range(rows)]
    new = [
        NewRow(r, str(r), [5, 9, 30], 3, params(kind, r), r, (), [blocks[r]]) for r in range(rows)
    ]
    names = list(range(rows))
    worker.execute(StepPlan(0, [], new, [], names, [0] * rows, [3] * rows, names)).get()
    for step in (1, 2, 3):
        worker.execute(StepPlan(step, [], [], [], [], [], [], [], {}, names)).get()
    with Count() as operations:
        worker.execute(StepPlan(4, [], [], [], [], [], [], [], {}, names)).get()
    calls = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(watch)
    try:
        worker.execute(StepPlan(5, [], [], [], [], [], [], [], {}, names)).get()
    finally:
        sys.setprofile(None)
    return operations.num, calls


@pytest.mark.usefixtures("no_garbage_is_collected")
@pytest.mark.parametrize("kind", ["greedy", "mixed"])
def test_worker_step_cost_does_not_grow_with_rows(kind: str) -> None:
    few = cost(kind, 4)
    many = cost(kind, 64)
    assert few == many
    assert many[0] <= MAX_OPERATIONS[kind]
    assert many[1] <= MAX_CALLS[kind]
