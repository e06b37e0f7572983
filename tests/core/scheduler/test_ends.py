"""Every way a request can end, in every state, without leaks."""

import random

import pytest

from builtin_plugins.scheduling_policies.priority import Priority
from core.errors import EngineError
from core.step import StepResult
from tests.core.scheduler.fake_worker import VOCAB, Engine


def prompt(length, first=1):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


def test_abort_of_unknown_or_ended_request_returns_none():
    engine = Engine()
    assert engine.abort("unknown") is None
    engine.add("a", prompt(3), 1)
    engine.run()
    assert engine.abort("a") is None


def test_abort_while_waiting():
    engine = Engine()
    engine.add("a", prompt(3))
    assert engine.abort("a").finish_reason == "abort"
    assert not engine.scheduler.has_work


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("steps", range(6))
def test_abort_at_any_step_with_steps_in_flight(depth, steps):
    engine = Engine("hybrid", depth=depth, budget=8)
    engine.add("a", prompt(20), 12, eos_token_ids=())
    engine.add("b", prompt(9, 2), 12, eos_token_ids=())
    for _ in range(steps):
        engine.step()
    engine.schedule()
    assert engine.abort("a").finish_reason == "abort"
    engine.run()
    engine.check_outputs()
    engine.check_idle()
    assert engine.finished["b"].finish_reason == "length"


def test_abort_while_preempted_with_results_in_flight():
    engine = Engine(num_blocks=10, depth=2, prefix_caching=False, max_model_len=40)
    for i in range(3):
        engine.add(f"r{i}", prompt(10, i), 25, eos_token_ids=())
    while engine.scheduler.num_preemptions == 0:
        engine.step()
    assert engine.scheduler.num_waiting
    assert engine.abort("r2").finish_reason == "abort"
    engine.run()
    engine.check_outputs()
    engine.check_idle()


def test_preempted_request_restarts_after_its_results_arrive():
    """The preempting request is aborted at once, so blocks would be there while the victim is still
    in flight.
    """
    engine = Engine(num_blocks=11, depth=3, budget=12, policy=Priority(), prefix_caching=False)

    def schedule():
        if len(engine.worker.queue) == 2:
            engine.collect()
        engine.schedule()

    engine.add("low", prompt(5), 30, priority=1, eos_token_ids=())
    schedule()
    schedule()
    engine.add("high", prompt(33, 2), 2, priority=0, eos_token_ids=())
    while engine.scheduler.num_preemptions == 0:
        schedule()
    engine.abort("high")
    engine.schedule()
    assert engine.started.count("low") == 1
    engine.run()
    assert engine.started.count("low") == 2
    engine.check_outputs()
    engine.check_idle()


def test_random_aborts_leave_no_lease():
    rng = random.Random(7)
    engine = Engine("three", num_blocks=60, depth=2, max_num_seqs=6, budget=24)
    aborted = names = 0
    while aborted < 1000:
        if len(engine.requests) - len(engine.finished) < 12:
            names += 1
            engine.add(f"r{names}", prompt(rng.randrange(1, 30), names % 4), rng.randrange(1, 20))
        open_ids = [name for name in engine.requests if name not in engine.finished]
        if open_ids and rng.random() < 0.6:
            aborted += engine.abort(rng.choice(open_ids)) is not None
        if rng.random() < 0.6:
            engine.schedule()
        if engine.worker.queue and rng.random() < 0.6:
            engine.collect()
    engine.run()
    engine.check_outputs()
    engine.check_idle()
    assert engine.scheduler.reset_prefix_cache()


def test_failed_row_fails_only_its_request():
    engine = Engine(depth=2)
    engine.add("a", prompt(20), 9, eos_token_ids=())
    engine.add("b", prompt(9, 2), 9, eos_token_ids=())
    engine.worker.fail["a"] = "grammar plugin 'x' failed"
    engine.run()
    assert (engine.finished["a"].finish_reason, engine.finished["a"].error) == (
        "error",
        "grammar plugin 'x' failed",
    )
    assert engine.finished["b"].finish_reason == "length"
    engine.check_outputs()
    engine.check_idle()


def test_blocks_of_a_failed_request_are_not_reused():
    engine = Engine(budget=64)
    engine.worker.fail["a"] = "non-finite logits"
    engine.add("a", prompt(33), 2)
    engine.run()
    engine.add("b", prompt(33), 2)
    engine.run()
    assert engine.finished["b"].num_cached_tokens == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_failed_step_ends_only_its_requests(depth):
    engine = Engine(depth=depth, max_num_seqs=2, budget=64)
    for i in range(4):
        engine.add(f"r{i}", prompt(17), 9, eos_token_ids=())
    for _ in range(depth):
        engine.schedule()
    engine.fail_steps()
    ended = {name: (delta.finish_reason, delta.error) for name, delta in engine.finished.items()}
    assert ended == dict.fromkeys(["r0", "r1"], ("error", "the device is gone"))
    engine.run()
    assert engine.finished["r2"].num_cached_tokens == 0
    engine.check_outputs()
    engine.check_idle()


def test_row_without_a_token_fails():
    engine = Engine()
    engine.add("a", prompt(3))
    plan = engine.scheduler.schedule()
    (delta,) = engine.scheduler.update(StepResult(plan.step, [0], [], accepted=[0]))
    assert delta.finish_reason == "error"
    assert "returned 0 tokens" in delta.error


def test_out_of_order_result_raises():
    engine = Engine(depth=2)
    engine.add("a", prompt(3), 9)
    engine.scheduler.schedule()
    with pytest.raises(EngineError, match="step result: got step 2; expected step 1"):
        engine.scheduler.update(StepResult(2, [0], [5]))


def test_result_with_wrong_number_of_rows_raises():
    engine = Engine()
    engine.add("a", prompt(3), 9)
    engine.scheduler.schedule()
    with pytest.raises(EngineError, match="got tokens of 0 rows; expected 1"):
        engine.scheduler.update(StepResult(1, [], []))
