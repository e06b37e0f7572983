"""Speculation is never much slower than none, and is used when it pays."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from builtin_plugins.features.speculation import drafter, worker
from tests.builtin_plugins.speculators.simulated_clock import Clock, Engine, FakeSpeculator

ROWS = 32


def full(size: int) -> float:
    """Return the step time of a full batch: linear in the tokens."""
    return 0.0035 * size / ROWS


def idle(size: int) -> float:
    """Return the step time of an idle device: nearly constant."""
    return 0.0035 * (1 + 0.1 * size / ROWS)


def engine(
    monkeypatch: pytest.MonkeyPatch,
    step_s: Any,
    length: int = 128,
    rows: int = ROWS,
    **speculator: Any,
) -> Engine:
    clock = Clock()
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(drafter, "time", clock)
    return Engine(clock, FakeSpeculator(clock, **speculator), rows, length, step_s)


LOOKUP: dict[str, Any] = {"is_lookup": True, "row_s": 10e-6, "first_s": 50e-6}
MODEL: dict[str, Any] = {"is_lookup": False, "row_s": 200e-6, "first_s": 1e-3}


@pytest.mark.parametrize(
    ("speculator", "acceptance_rate"),
    [
        pytest.param(LOOKUP, 0.0, id="all rejected"),
        pytest.param(LOOKUP, 0.5, id="half accepted"),
        pytest.param(LOOKUP | {"row_s": 250e-6}, 1.0, id="accepted, slow lookup"),
        pytest.param(LOOKUP | {"found": False}, 0.0, id="no match"),
        pytest.param(MODEL, 0.5, id="draft model"),
    ],
)
def test_full_batch_is_not_slower(
    monkeypatch: pytest.MonkeyPatch, speculator: dict[str, Any], acceptance_rate: float
) -> None:
    assert engine(monkeypatch, full, **speculator).run(2000, acceptance_rate) > 0.98


def test_noisy_step_times_are_not_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shortest recent steps predict a gain; the measured steps show a loss."""
    draw = Random(0)

    def uneven(size: int) -> float:
        extra = 0.35 * (size - ROWS) / ROWS
        return 0.0035 * (1 + extra * (1 if draw.random() < 0.2 else 4))

    assert engine(monkeypatch, uneven, **LOOKUP).run(4000, 0.6) > 0.98


@pytest.mark.parametrize("length", [20, 128])
def test_rejected_draft_tokens_are_not_slower(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """The draft model also prefills each request, which takes as long as a few steps."""
    assert engine(monkeypatch, idle, length, **MODEL).run(4000, 0.05) > 0.98


@pytest.mark.parametrize("speculator", [LOOKUP, MODEL], ids=["lookup", "model"])
def test_accepted_draft_tokens_are_faster(
    monkeypatch: pytest.MonkeyPatch, speculator: dict[str, Any]
) -> None:
    one = {"rows": 1, "row_s": speculator["row_s"], "is_lookup": speculator["is_lookup"]}
    assert engine(monkeypatch, idle, **one).run(500, 0.9) > 2.5


def test_one_slow_lookup_does_not_stop_speculation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engine(monkeypatch, idle, 9000, rows=1, is_lookup=True, row_s=10e-6, first_s=0.5)
    made.run(400, 0.9)
    assert made.run(100, 0.9) > 2.5


def test_speculation_resumes_when_acceptance_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(monkeypatch, idle, **LOOKUP)
    made.run(600, 0.0)
    assert made.run(100, 0.0) > 0.99
    made.run(1500, 0.9)
    assert made.run(100, 0.9) > 2.0
