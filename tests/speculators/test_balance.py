"""What speculation may lose: what it has saved of late, and a small share of the time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.speculators.balance import LONGEST_REST, MOST_S, MOST_STEPS, SHARE, Balance

STEP_S = 0.001


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 0.01)), max_size=300))
def test_no_more_is_lost_than_was_saved_and_a_share_of_the_time(
    events: list[tuple[bool, float]],
) -> None:
    """Whoever asks before each step; the last thing that was done may go beyond."""
    balance = Balance()
    saved_s = 0.0
    lost_s = 0.0
    steps = 0
    for gains, seconds in events:
        if balance.is_spent:
            rest = max(1, balance.rest(STEP_S))
            balance.passed(STEP_S, rest)
            steps += rest
        elif gains:
            balance.saved(seconds, STEP_S)
            saved_s += seconds
        else:
            balance.spent(seconds)
            lost_s += seconds
        assert lost_s <= MOST_S + saved_s + SHARE * STEP_S * steps + 0.01 + 1e-9


def test_what_was_saved_long_ago_is_not_lost_at_once() -> None:
    balance = Balance()
    balance.saved(100.0, STEP_S)
    balance.spent(MOST_S + 1e-6)
    assert balance.is_spent


def test_a_few_wrong_guesses_of_a_large_model_end_nothing() -> None:
    balance = Balance()
    step_s = 0.06
    for _ in range(MOST_STEPS - 1):
        balance.saved(-step_s, step_s)
        assert not balance.is_spent
    for _ in range(2):
        balance.saved(-step_s, step_s)
    assert balance.is_spent


def test_it_rests_until_the_share_of_the_time_has_made_up_for_it() -> None:
    balance = Balance()
    balance.spent(MOST_S + 10 * SHARE * STEP_S)
    assert balance.rest(STEP_S) in (9, 10)
    balance.passed(STEP_S, 11)
    assert not balance.is_spent
    assert balance.rest(STEP_S) == 0
    balance.spent(100.0)
    assert balance.rest(STEP_S) == LONGEST_REST
