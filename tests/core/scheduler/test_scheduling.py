"""Budget, order, preemption, limits and ends, on a worker that checks what every row reads."""

import pytest

from builtin_plugins.scheduling_policies.priority import Priority
from core.errors import InvalidRequest
from core.step import EngineRequest
from core.types import SamplingParams
from tests.core.scheduler.fake_worker import VOCAB, Engine, expected_output, in_order, make_request


def prompt(length, first=1):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


@pytest.mark.parametrize(
    "layers", ["full", "hybrid", "three", "sizes", "windowed", "states", "stateful", "none"]
)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_batched_tokens_match_a_request_alone(layers, depth):
    engine = Engine(layers, depth=depth, num_blocks=60)
    for i in range(9):
        engine.add(f"r{i}", prompt(5 + 4 * i, i % 3), 12)
    engine.run()
    engine.check_outputs()
    engine.check_idle()
    assert len(engine.finished) == 9


def test_long_prompt_is_chunked_by_the_token_budget():
    engine = Engine(budget=16)
    engine.add("a", prompt(40), 2, eos_token_ids=())
    engine.run()
    assert [plan.num_tokens for plan in engine.plans] == [16, 16, 8, 1]
    assert [len(plan.samples) + len(plan.decode_rows) for plan in engine.plans] == [0, 0, 1, 1]


def test_decode_rows_come_before_prefill_chunks():
    engine = Engine(budget=8)
    engine.add("a", prompt(4), 9, eos_token_ids=())
    engine.step()
    engine.add("b", prompt(20, 2), 9, eos_token_ids=())
    engine.step()
    engine.step()
    assert [(len(plan.decode_rows), plan.counts) for plan in engine.plans[-2:]] == [
        (1, [7]),
        (1, [7]),
    ]


def test_long_prefill_threshold_limits_chunks():
    engine = Engine(budget=16, long_prefill_token_threshold=6)
    engine.add("a", prompt(14), 1)
    engine.add("b", prompt(10, 2), 1)
    engine.run()
    assert engine.plans[0].counts == [6, 6]


def test_mixed_prefill_budget_limits_prompts_with_decode_rows():
    engine = Engine(budget=32, max_mixed_prefill_tokens=6)
    engine.add("a", prompt(20), 3, eos_token_ids=())
    engine.add("b", prompt(20, 2), 9, eos_token_ids=())
    engine.run()
    assert [(len(plan.decode_rows), plan.counts) for plan in engine.plans[:4]] == [
        (0, [20, 12]),
        (1, [6]),
        (1, [2]),
        (1, []),
    ]
    engine.check_outputs()


def resume(engine, name, base, num_output_tokens=4):
    """Add a request that another engine had, with its first output tokens."""
    tokens = expected_output(make_request(name, prompt(8, base), 12, eos_token_ids=()), 64)
    given = tokens[:num_output_tokens]
    engine.add(name, prompt(8, base), 12, eos_token_ids=(), output_token_ids=given)


def test_each_resumed_request_has_a_mixed_prefill_budget_of_its_own():
    engine = Engine(budget=32, max_num_seqs=8, max_mixed_prefill_tokens=12)
    engine.add("a", prompt(3), 20, eos_token_ids=())
    engine.step()
    engine.add("new", prompt(12, 1), 3, eos_token_ids=())
    for base in range(2, 5):
        resume(engine, f"moved {base}", base)
    engine.add("later", prompt(12, 5), 3, eos_token_ids=())
    engine.run()
    # 8 prompt and 4 output tokens of each moved request; the first step has room for 31 in all
    assert [(len(plan.decode_rows), plan.counts) for plan in engine.plans[1:4]] == [
        (1, [12, 12, 7]),
        (3, [5, 12, 12]),
        (6, []),
    ]
    engine.check_outputs()


def test_a_long_resumed_request_is_chunked_like_a_new_one():
    engine = Engine(budget=32, max_mixed_prefill_tokens=5)
    engine.add("a", prompt(3), 20, eos_token_ids=())
    engine.step()
    resume(engine, "moved", 2)
    engine.run()
    assert [plan.counts for plan in engine.plans[1:4]] == [[5], [5], [2]]


def test_mixed_prefill_budget_needs_chunked_prefill():
    engine = Engine(budget=16, chunked_prefill=False, max_mixed_prefill_tokens=2)
    engine.add("a", prompt(10), 4, eos_token_ids=())
    engine.step()
    engine.add("b", prompt(10, 2), 3)
    engine.run()
    assert engine.plans[1].counts == [10]


def test_prompt_without_chunking_waits_for_budget():
    engine = Engine(budget=16, chunked_prefill=False)
    engine.add("a", prompt(10), 4, eos_token_ids=())
    engine.add("b", prompt(10, 2), 3)
    engine.run()
    assert [(len(plan.decode_rows), plan.counts) for plan in engine.plans[:2]] == [
        (0, [10]),
        (1, [10]),
    ]
    engine.check_outputs()


def test_prompt_beyond_budget_without_chunking_is_rejected():
    engine = Engine(budget=16, chunked_prefill=False)
    with pytest.raises(
        InvalidRequest, match=r"17 tokens are more than the step budget of 16.*chunked"
    ):
        engine.scheduler.add(make_request("a", prompt(17)))


def test_running_requests_are_limited_by_rows():
    engine = Engine(max_num_seqs=2)
    for i in range(5):
        engine.add(f"r{i}", prompt(3, i), 6)
    engine.step()
    assert engine.scheduler.num_running <= 2
    engine.run()
    assert max(len(plan.rows) + len(plan.decode_rows) for plan in engine.plans) == 2


def test_running_requests_are_limited_by_token_budget():
    engine = Engine(max_num_seqs=8, budget=3, max_model_len=32)
    for i in range(8):
        engine.add(f"r{i}", prompt(3, i), 6)
    engine.run()
    engine.check_outputs()


def test_fcfs_starts_in_arrival_order():
    engine = Engine(max_num_seqs=1)
    for name in "abc":
        engine.add(name, prompt(3, ord(name)), 3)
    engine.run()
    assert engine.started == ["a", "b", "c"]


def test_priority_policy_orders_by_value_then_arrival():
    engine = Engine(max_num_seqs=1, policy=Priority())
    for name, value in (("a", 5), ("b", 0), ("c", 5), ("d", -1)):
        engine.add(name, prompt(3, ord(name)), 3, priority=value)
    engine.run()
    assert engine.started == ["d", "b", "a", "c"]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_preempted_request_resumes_with_identical_tokens(depth):
    engine = Engine(num_blocks=10, depth=depth, prefix_caching=False, max_model_len=40)
    for i in range(3):
        assert engine.add(f"r{i}", prompt(10, i), 25, eos_token_ids=())
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    engine.check_outputs()
    engine.check_idle()


def test_lowest_ranked_request_is_preempted():
    engine = Engine(num_blocks=12, policy=Priority(), max_model_len=44)
    engine.add("low", prompt(10, 1), 30, priority=9, eos_token_ids=())
    engine.add("high", prompt(10, 2), 30, priority=0, eos_token_ids=())
    engine.run()
    assert engine.started.count("high") == 1
    assert engine.started.count("low") > 1
    assert in_order(list(engine.finished), "high", "low")


def test_oversubscribed_requests_all_finish():
    engine = Engine("hybrid", num_blocks=24, max_num_seqs=32, budget=64, max_model_len=48)
    accepted = [engine.add(f"r{i}", prompt(1 + i % 30, i % 5), 1 + i % 17) for i in range(160)]
    engine.run()
    engine.check_outputs()
    engine.check_idle()
    assert sum(accepted) == len(engine.finished) > 100


def test_request_larger_than_the_cache_is_rejected():
    engine = Engine(num_blocks=4)
    with pytest.raises(InvalidRequest) as error:
        engine.scheduler.add(make_request("a", prompt(10), 8))
    assert error.value.field == "max_tokens"
    assert (
        "of 18 tokens do not fit the KV cache, which holds 17. Ask for at most 7 output tokens"
        in str(error.value)
    )
    with pytest.raises(InvalidRequest) as error:
        engine.scheduler.add(make_request("a", prompt(20), 8))
    assert error.value.field == "prompt"
    assert engine.add("a", prompt(10), 7)
    engine.run()


def test_prompt_without_room_to_generate_is_rejected():
    engine = Engine(max_model_len=16)
    with pytest.raises(InvalidRequest, match="at most 15 of the 16 tokens"):
        engine.scheduler.add(make_request("a", prompt(16)))
    with pytest.raises(InvalidRequest, match="no tokens"):
        engine.scheduler.add(make_request("a", []))


def test_context_length_finishes_a_request():
    engine = Engine(max_model_len=16)
    engine.add("a", prompt(10), 100, eos_token_ids=())
    engine.run()
    assert len(engine.outputs["a"]) == 6
    assert engine.finished["a"].finish_reason == "length"


def test_duplicate_request_id_is_rejected():
    engine = Engine()
    engine.add("a", prompt(3))
    with pytest.raises(InvalidRequest, match="request_id"):
        engine.scheduler.add(make_request("a", prompt(3)))


def output_of(sampling, max_tokens=12, eos_token_ids=()):
    engine = Engine()
    engine.add("a", prompt(9), max_tokens, sampling=sampling, eos_token_ids=eos_token_ids)
    engine.run()
    return engine.outputs["a"], engine.finished["a"]


def test_stop_conditions():
    alone = expected_output(make_request("a", prompt(9), 12, eos_token_ids=()), 64)
    third = alone[2]
    assert third not in alone[:2]
    tokens, delta = output_of(SamplingParams(), eos_token_ids=(third,))
    assert (tokens, delta.finish_reason, delta.stop_reason) == (alone[:3], "stop", None)
    tokens, delta = output_of(SamplingParams(stop_token_ids=[third]))
    assert (tokens, delta.finish_reason, delta.stop_reason) == (alone[:3], "stop", third)
    tokens, delta = output_of(SamplingParams(ignore_eos=True), eos_token_ids=(third,))
    assert (tokens, delta.finish_reason) == (alone, "length")
    tokens, delta = output_of(SamplingParams(min_tokens=3), eos_token_ids=(third,))
    assert len(tokens) > 3


def test_generation_continues_after_given_output_tokens():
    request = make_request("a", prompt(9), 12, eos_token_ids=())
    alone = expected_output(request, 64)
    engine = Engine()
    engine.add("a", prompt(9), 12, eos_token_ids=(), output_token_ids=alone[:5])
    engine.run()
    assert engine.outputs["a"] == alone[5:]


def test_no_step_is_planned_beyond_the_last_token():
    for depth in (1, 2, 3):
        engine = Engine(depth=depth)
        engine.add("a", prompt(4), 5, eos_token_ids=())
        engine.run()
        assert engine.worker.num_computed == 4 + 4


def test_tokens_after_a_late_finish_are_dropped():
    engine = Engine(depth=3)
    alone = expected_output(make_request("a", prompt(9), 12, eos_token_ids=()), 64)
    engine.add("a", prompt(9), 12, eos_token_ids=(alone[1],))
    engine.run()
    assert engine.outputs["a"] == alone[:2]
    assert engine.worker.num_computed > 9 + 1
    engine.check_idle()


def test_decode_rows_are_stable_without_changes():
    engine = Engine(max_num_seqs=4)
    for i in range(4):
        engine.add(f"r{i}", prompt(3, i), 12, eos_token_ids=())
    for _ in range(6):
        engine.step()
    assert len({tuple(plan.decode_rows) for plan in engine.plans[2:]}) == 1


def test_plans_in_flight_are_limited_by_depth():
    engine = Engine(depth=2)
    engine.add("a", prompt(4), 9, eos_token_ids=())
    assert engine.schedule() is not None
    assert engine.schedule() is not None
    assert engine.schedule() is None
    assert len(engine.worker.queue) == 2


def test_new_row_has_the_request_fields():
    engine = Engine()
    sampling = SamplingParams(max_tokens=3, temperature=0.5)
    request = EngineRequest(
        request_id="a",
        prompt_token_ids=prompt(5),
        sampling=sampling,
        seed=77,
        max_tokens=3,
        eos_token_ids=(2, 3),
    )
    engine.scheduler.add(request)
    new = engine.scheduler.schedule().new[0]
    assert (new.seed, new.sampling, new.eos_token_ids, new.prompt_len) == (77, sampling, (2, 3), 5)
    assert new.token_ids == prompt(5)
