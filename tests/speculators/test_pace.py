"""How many guesses are made: as many as bring more tokens in a second than they cost."""

from __future__ import annotations

import numpy as np
import pytest

from builtin_plugins.speculators.pace import Pace

MOST = 5


def told(cost_s: dict[int, float]) -> Pace:
    pace = Pace(64, MOST)
    for size, seconds in cost_s.items():
        for _ in range(4):
            pace.costs.take(size, seconds)
    return pace


def choose(pace: Pace, rows: int, ready: int = MOST) -> list[int]:
    chosen: list[int] = pace.choose(np.arange(rows), np.full(rows, ready)).tolist()
    return chosen


def test_where_more_tokens_cost_nothing_all_are_guessed() -> None:
    assert choose(told({1: 1.0, 6: 1.0}), 1) == [MOST]
    assert choose(told({1: 1.0, 6: 1.0}), 1, ready=2) == [2]


def test_where_each_token_costs_as_much_none_is_guessed() -> None:
    pace = told({size: float(size) for size in (32, 64, 96, 192)})
    pace.costs.take_prompts(100, 100.0)
    assert choose(pace, 32) == [0] * 32


def test_none_is_guessed_where_finding_them_takes_what_they_save() -> None:
    pace = told({4: 1.0, 24: 1.0})
    rows = np.arange(4)
    ready = np.array([1, 0, 0, 0])
    assert pace.choose(rows, ready).tolist() == [1, 0, 0, 0]
    assert pace.choose(rows, ready, 0.5).tolist() == [0, 0, 0, 0]


def test_rows_whose_guesses_are_right_guess_more() -> None:
    pace = told({4: 1.0, 8: 1.2, 24: 2.5})
    rows = np.arange(4)
    for _ in range(10):
        pace.verified(rows, np.array([5, 5, 1, 1]), np.array([5, 5, 0, 0]))
    good, also, bad, worse = choose(pace, 4)
    assert good == also > bad == worse


def test_nothing_is_guessed_before_a_step_was_measured() -> None:
    assert choose(Pace(4, MOST), 2) == [0, 0]


def test_trials_lose_a_bounded_time() -> None:
    pace = told({8: 0.001, 48: 8.0})  # as when another process had the machine
    assert choose(pace, 8) == [0] * 8
    quick = told({8: 0.001, 48: 0.02})
    trials = [sum(choose(quick, 8)) for _ in range(60)]
    assert trials[0] > 0, "tried again: it may have been a disturbance"
    assert trials[50:] == [0] * 10
    seconds = quick.costs.of(8 + np.arange(49))
    assert seconds is not None
    assert 0.05 < sum(float(seconds[count] - seconds[0]) for count in trials) <= 0.1


def test_a_trial_is_as_large_as_time_may_be_lost() -> None:
    pace = told({32: 0.1})
    pace.costs.take_prompts(1000, 1.0)
    assert 32 < sum(choose(pace, 32)) <= 100, (
        "a token takes a thousandth of a second, and a tenth may be lost"
    )


def test_what_is_known_to_pay_is_done_where_more_may_not_be_tried() -> None:
    pace = told({32: 1.0, 64: 1.1})
    pace.costs.take_prompts(100, 1.0)
    assert sum(choose(pace, 32)) == 32


def test_a_trial_counts_as_what_it_has_lost() -> None:
    counts = []
    for seconds in (None, 1.0):
        pace = told({8: 0.001, 48: 0.04})
        trials = 0
        while any(choose(pace, 8)):
            trials += 1
            if seconds is not None:
                pace.tried(8, seconds, 0.0, 0.0)
        counts.append(trials)
    assert 0 < 2 * counts[1] < counts[0], "they took much longer than was reckoned"
    for _ in range(50):
        pace.passed(0.01)
    assert not any(choose(pace, 8))
    pace.passed(60.0)
    for _ in range(50):
        assert any(choose(pace, 8)), "trials that bring what they cost are free"
        pace.tried(8, 0.004, 4.0, 0.0)


def test_models_of_long_steps_are_tried_once_the_time_is_saved() -> None:
    pace = told({1: 0.5})
    pace.costs.take_prompts(20, 1.0)  # five tokens as in prompts: a quarter of a second
    assert choose(pace, 1) == [2], "a tenth of a second"
    for _ in range(200):
        pace.passed(0.5)
    assert choose(pace, 1) == [MOST]


def test_a_row_forgets_who_had_it() -> None:
    pace = told({1: 1.0, 6: 3.0})
    for _ in range(10):
        pace.verified(np.array([0]), np.array([1]), np.array([0]))
    low = pace.likely(np.array([0]))[0]
    pace.entered(0)
    assert pace.likely(np.array([0]))[0] > low + 0.2
    assert pace.likely(np.array([0]))[0] == pytest.approx(pace.likely(np.array([1]))[0])


def test_a_token_more_is_not_reckoned_dearer_than_those_of_decoding_steps() -> None:
    pace = told({32: 0.0016})
    pace.costs.take_prompts(
        32, 0.004
    )  # short ends of prompts that are in the cache: nearly all of it is the step itself
    assert sum(choose(pace, 32)) >= 32


def test_steps_have_few_sizes() -> None:
    """The first steps of each size take longer, as a recorder's do, and would be paid for again and
    again.
    """
    pace = told({32: 1.0, 64: 1.1, 96: 1.2, 192: 1.5})
    draw = np.random.default_rng(1)
    rows = np.arange(32)
    sizes = set()
    for _ in range(200):
        right = draw.integers(0, MOST + 1, 32)
        pace.verified(rows, np.minimum(right + 1, MOST), right)
        sizes.add(32 + int(pace.choose(rows, draw.integers(0, MOST + 1, 32)).sum()))
    assert len(sizes) > 2
    assert all(size % (4 if size < 64 else 8 if size < 128 else 16) == 0 for size in sizes)
    few = [1, 1, 1] + [0] * 29
    assert pace.choose(rows, np.array(few)).tolist() == few
