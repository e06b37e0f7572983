"""The loss budget: recent savings, and a small share of the run time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.features.speculation.loss_budget import (
    LOSS_SHARE,
    MAX_PAUSE,
    MIN_CAPACITY_S,
    MIN_CAPACITY_STEPS,
    LossBudget,
)

STEP_S = 0.001


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 0.01)), max_size=300))
def test_loss_is_bounded_by_savings_and_time_share(events: list[tuple[bool, float]]) -> None:
    """If it is checked before each step; the last step may exceed it."""
    budget = LossBudget()
    saved_s = 0.0
    lost_s = 0.0
    steps = 0
    for gains, seconds in events:
        if budget.is_spent:
            pause = max(1, budget.pause(STEP_S))
            budget.add_time(STEP_S, pause)
            steps += pause
        elif gains:
            budget.add_saving(seconds, STEP_S)
            saved_s += seconds
        else:
            budget.spend(seconds)
            lost_s += seconds
        assert lost_s <= MIN_CAPACITY_S + saved_s + LOSS_SHARE * STEP_S * steps + 0.01 + 1e-9


def test_old_savings_are_capped() -> None:
    budget = LossBudget()
    budget.add_saving(100.0, STEP_S)
    budget.spend(MIN_CAPACITY_S + 1e-6)
    assert budget.is_spent


def test_few_rejections_of_slow_steps_do_not_spend_the_budget() -> None:
    budget = LossBudget()
    step_s = 0.06
    for _ in range(MIN_CAPACITY_STEPS - 1):
        budget.add_saving(-step_s, step_s)
        assert not budget.is_spent
    for _ in range(2):
        budget.add_saving(-step_s, step_s)
    assert budget.is_spent


def test_pause_lasts_until_the_budget_recovers() -> None:
    budget = LossBudget()
    budget.spend(MIN_CAPACITY_S + 10 * LOSS_SHARE * STEP_S)
    assert budget.pause(STEP_S) in (9, 10)
    budget.add_time(STEP_S, 11)
    assert not budget.is_spent
    assert budget.pause(STEP_S) == 0
    budget.spend(100.0)
    assert budget.pause(STEP_S) == MAX_PAUSE
