"""Speculation that does not pay costs next to nothing, whyever it does not; one that pays is found
out.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from simulated import Clock, Engine, Guesser

from builtin_plugins.speculators import drafting

ROWS = 32


def full(size: int) -> float:
    """Return the seconds of a step in a full batch: each token takes as long as the last."""
    return 0.0035 * size / ROWS


def idle(size: int) -> float:
    """Return the seconds of a step that takes hardly longer with more tokens."""
    return 0.0035 * (1 + 0.1 * size / ROWS)


def engine(
    monkeypatch: pytest.MonkeyPatch,
    step_s: Any,
    length: int = 128,
    rows: int = ROWS,
    **guesser: Any,
) -> Engine:
    clock = Clock()
    monkeypatch.setattr(drafting, "time", clock)
    return Engine(clock, Guesser(clock, **guesser), rows, length, step_s)


LOOKUP: dict[str, Any] = {"finds": True, "row_s": 10e-6, "first_s": 50e-6}
MODEL: dict[str, Any] = {"finds": False, "row_s": 200e-6, "first_s": 1e-3}


@pytest.mark.parametrize(
    ("guesser", "right"),
    [
        pytest.param(LOOKUP, 0.0, id="wrong"),
        pytest.param(LOOKUP, 0.5, id="half of them right"),
        pytest.param(LOOKUP | {"row_s": 250e-6}, 1.0, id="right, and long looked for"),
        pytest.param(LOOKUP | {"found": False}, 0.0, id="none found"),
        pytest.param(MODEL, 0.5, id="a model's"),
    ],
)
def test_a_full_batch_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, guesser: dict[str, Any], right: float
) -> None:
    assert engine(monkeypatch, full, **guesser).run(2000, right) > 0.98


def test_steps_that_mostly_take_longer_than_the_shortest_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is reckoned from the shortest of the last few would pay; what they take does not."""
    draw = Random(0)

    def uneven(size: int) -> float:
        more = 0.35 * (size - ROWS) / ROWS
        return 0.0035 * (1 + more * (1 if draw.random() < 0.2 else 4))

    assert engine(monkeypatch, uneven, **LOOKUP).run(4000, 0.6) > 0.98


@pytest.mark.parametrize("length", [20, 128])
def test_wrong_guesses_of_a_model_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Each request is caught up with by the model that guesses, which takes as long as a few steps."""
    assert engine(monkeypatch, idle, length, **MODEL).run(4000, 0.05) > 0.98


@pytest.mark.parametrize("guesser", [LOOKUP, MODEL], ids=["lookup", "model"])
def test_right_guesses_pay(monkeypatch: pytest.MonkeyPatch, guesser: dict[str, Any]) -> None:
    one = {"rows": 1, "row_s": guesser["row_s"], "finds": guesser["finds"]}
    assert engine(monkeypatch, idle, **one).run(500, 0.9) > 2.5


def test_a_look_that_another_process_made_long_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engine(monkeypatch, idle, 9000, rows=1, finds=True, row_s=10e-6, first_s=0.5)
    made.run(400, 0.9)
    assert made.run(100, 0.9) > 2.5


def test_it_is_found_out_when_guesses_become_right(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(monkeypatch, idle, **LOOKUP)
    made.run(600, 0.0)
    assert made.run(100, 0.0) > 0.99
    made.run(1500, 0.9)
    assert made.run(100, 0.9) > 2.0
