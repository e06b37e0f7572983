"""The draft-length controller: as many draft tokens as maximize tokens per second."""

from __future__ import annotations

import numpy as np
import pytest

from builtin_plugins.features.speculation.draft_length import DraftLengthController

MAX_DRAFT_TOKENS = 5


def with_costs(cost_s: dict[int, float]) -> DraftLengthController:
    controller = DraftLengthController(64, MAX_DRAFT_TOKENS)
    for size, seconds in cost_s.items():
        for _ in range(4):
            controller.costs.add_decode_step(size, seconds)
    return controller


def choose(
    controller: DraftLengthController, rows: int, available: int = MAX_DRAFT_TOKENS
) -> list[int]:
    chosen: list[int] = controller.choose(np.arange(rows), np.full(rows, available)).tolist()
    return chosen


def test_free_tokens_use_the_maximum_draft_length() -> None:
    assert choose(with_costs({1: 1.0, 6: 1.0}), 1) == [MAX_DRAFT_TOKENS]
    assert choose(with_costs({1: 1.0, 6: 1.0}), 1, available=2) == [2]


def test_linear_cost_disables_drafting() -> None:
    controller = with_costs({size: float(size) for size in (32, 64, 96, 192)})
    controller.costs.add_mixed_step(100, 100.0)
    assert choose(controller, 32) == [0] * 32


def test_expensive_lookup_disables_drafting() -> None:
    controller = with_costs({4: 1.0, 24: 1.0})
    rows = np.arange(4)
    available = np.array([1, 0, 0, 0])
    assert controller.choose(rows, available).tolist() == [1, 0, 0, 0]
    assert controller.choose(rows, available, 0.5).tolist() == [0, 0, 0, 0]


def test_rows_with_higher_acceptance_draft_more() -> None:
    controller = with_costs({4: 1.0, 8: 1.2, 24: 2.5})
    rows = np.arange(4)
    for _ in range(10):
        controller.add_verified(rows, np.array([5, 5, 1, 1]), np.array([5, 5, 0, 0]))
    good, also, bad, worse = choose(controller, 4)
    assert good == also > bad == worse


def test_no_drafting_before_the_first_measurement() -> None:
    assert choose(DraftLengthController(4, MAX_DRAFT_TOKENS), 2) == [0, 0]


def test_trials_are_bounded_in_time() -> None:
    controller = with_costs({8: 0.001, 48: 8.0})  # as if another process interfered
    assert choose(controller, 8) == [0] * 8
    quick = with_costs({8: 0.001, 48: 0.02})
    trials = [sum(choose(quick, 8)) for _ in range(60)]
    assert trials[0] > 0, "tried again: another process may have interfered"
    assert trials[50:] == [0] * 10
    seconds = quick.costs.predict(8 + np.arange(49))
    assert seconds is not None
    assert 0.05 < sum(float(seconds[count] - seconds[0]) for count in trials) <= 0.1


def test_trial_size_follows_the_trial_budget() -> None:
    controller = with_costs({32: 0.1})
    controller.costs.add_mixed_step(1000, 1.0)
    assert 32 < sum(choose(controller, 32)) <= 100, "a token takes 1 ms, and 100 ms may be lost"


def test_known_profitable_length_is_used_without_trial_budget() -> None:
    controller = with_costs({32: 1.0, 64: 1.1})
    controller.costs.add_mixed_step(100, 1.0)
    assert sum(choose(controller, 32)) == 32


def test_trial_is_charged_its_measured_loss() -> None:
    counts = []
    for seconds in (None, 1.0):
        controller = with_costs({8: 0.001, 48: 0.04})
        trials = 0
        while any(choose(controller, 8)):
            trials += 1
            if seconds is not None:
                controller.saving(8, seconds, 0.0, 0.0)
        counts.append(trials)
    assert 0 < 2 * counts[1] < counts[0], "they took much longer than predicted"
    for _ in range(50):
        controller.add_time(0.01)
    assert not any(choose(controller, 8))
    controller.add_time(60.0)
    for _ in range(50):
        assert any(choose(controller, 8)), "trials without a loss are free"
        controller.saving(8, 0.004, 4.0, 0.0)


def test_slow_models_are_tried_once_the_budget_allows() -> None:
    controller = with_costs({1: 0.5})
    controller.costs.add_mixed_step(20, 1.0)  # five prefill tokens take 0.25 s
    assert choose(controller, 1) == [2], "0.1 s"
    for _ in range(200):
        controller.add_time(0.5)
    assert choose(controller, 1) == [MAX_DRAFT_TOKENS]


def test_new_request_resets_row_acceptance() -> None:
    controller = with_costs({1: 1.0, 6: 3.0})
    for _ in range(10):
        controller.add_verified(np.array([0]), np.array([1]), np.array([0]))
    low = controller.acceptance_rates(np.array([0]))[0]
    controller.reset_row(0)
    reset, other = controller.acceptance_rates(np.array([0, 1]))
    assert reset > low + 0.2
    assert reset == pytest.approx(other)


def test_extra_token_cost_is_bounded_by_decode_steps() -> None:
    controller = with_costs({32: 0.0016})
    # Short prompt suffixes after cache hits: mostly fixed costs of the step.
    controller.costs.add_mixed_step(32, 0.004)
    assert sum(choose(controller, 32)) >= 32


def test_steps_use_few_sizes() -> None:
    """The first steps of each size include warm-up, such as CUDA graph capture."""
    controller = with_costs({32: 1.0, 64: 1.1, 96: 1.2, 192: 1.5})
    draw = np.random.default_rng(1)
    rows = np.arange(32)
    sizes = set()
    for _ in range(200):
        accepted = draw.integers(0, MAX_DRAFT_TOKENS + 1, 32)
        controller.add_verified(rows, np.minimum(accepted + 1, MAX_DRAFT_TOKENS), accepted)
        available = draw.integers(0, MAX_DRAFT_TOKENS + 1, 32)
        sizes.add(32 + int(controller.choose(rows, available).sum()))
    assert len(sizes) > 2
    assert all(size % (4 if size < 64 else 8 if size < 128 else 16) == 0 for size in sizes)
    few = [1, 1, 1] + [0] * 29
    assert controller.choose(rows, np.array(few)).tolist() == few
