"""What the scheduler does with the prefix cache."""

import msgspec
import pytest

from core.step import Logprobs, Span
from core.testing.invariants import check_scheduler
from core.types import SamplingParams
from tests.core.scheduler.fake_worker import VOCAB, Engine


def prompt(length, first=1):
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


def run_one(engine, name, **fields):
    engine.add(name, prompt(33), 2, **fields)
    engine.run()
    return engine.finished[name].num_cached_tokens


def test_second_request_computes_only_new_tokens():
    engine = Engine(budget=64)
    assert run_one(engine, "a") == 0
    before = engine.worker.num_computed
    assert run_one(engine, "b") == 32
    assert engine.worker.num_computed - before <= 3
    counters = engine.scheduler.take_counters()
    assert (counters.cached_tokens, counters.queried_tokens) == (32, 66)
    assert engine.scheduler.take_counters().queried_tokens == 0


def test_cache_salt_isolates_prefixes():
    engine = Engine(budget=64)
    run_one(engine, "a", cache_salt="tenant")
    assert run_one(engine, "b") == 0
    assert run_one(engine, "c", cache_salt="tenant") == 32


@pytest.mark.parametrize(
    "sampling", [SamplingParams(skip_reading_prefix_cache=True), SamplingParams(prompt_logprobs=0)]
)
def test_some_requests_skip_the_prefix_cache(sampling):
    engine = Engine(budget=64)
    run_one(engine, "a")
    assert run_one(engine, "b", sampling=sampling) == 0
    assert run_one(engine, "c") == 32


def test_equal_prompts_share_blocks_within_a_step():
    engine = Engine(budget=64)
    for i in range(4):
        engine.add(f"r{i}", prompt(33), 2)
    engine.run()
    assert engine.plans[0].counts == [33, 1, 1, 1]
    engine.check_outputs()


def test_generated_tokens_are_found_by_the_next_turn():
    engine = Engine(budget=64, max_model_len=64)
    engine.add("a", prompt(10), 15, eos_token_ids=())
    engine.run()
    engine.add("b", [*prompt(10), *engine.outputs["a"], 5], 3)
    engine.run()
    assert engine.finished["b"].num_cached_tokens == 24
    engine.check_outputs()


def test_reset_prefix_cache_requires_idle_requests():
    engine = Engine(budget=64)
    run_one(engine, "a")
    engine.add("b", prompt(9, 2), 5, eos_token_ids=())
    engine.step()
    assert not engine.scheduler.reset_prefix_cache()
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    assert run_one(engine, "c") == 0


def test_preempted_request_hits_its_own_blocks():
    engine = Engine(num_blocks=12, max_model_len=44)
    for i in range(2):
        engine.add(f"r{i}", prompt(10, i), 30, eos_token_ids=())
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    resumed = [new for plan in engine.plans for new in plan.new][2:]
    starts = [
        plan.starts[plan.rows.index(new.row)]
        for new in resumed
        for plan in engine.plans
        if new in plan.new
    ]
    assert any(start > 0 for start in starts)
    engine.check_outputs()


def test_prompt_logprobs_are_delivered_once_across_preemption():
    engine = Engine(num_blocks=13, budget=8, max_model_len=48)
    engine.add("a", prompt(12, 1), 36, eos_token_ids=())
    engine.step()
    engine.step()
    engine.add("b", prompt(12, 2), 25, eos_token_ids=(), sampling=SamplingParams(prompt_logprobs=0))
    seen = []
    while engine.scheduler.has_work:
        plan = engine.schedule()
        if plan is None:
            continue
        result = engine.worker.collect()
        entries = {}
        for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            sequence = engine.worker.rows[row]
            if sequence.request_id == "b":
                positions = range(start + 1, min(start + count, 11) + 1)
                entries[row] = [Logprobs([sequence.tokens[p]], [-float(p)], 1) for p in positions]
        result = msgspec.structs.replace(result, prompt_logprobs=entries)
        for delta in engine.scheduler.update(result):
            seen += [-int(entry.values[0]) for entry in delta.prompt_logprobs or []]
        check_scheduler(engine.scheduler)
    assert engine.scheduler.num_preemptions > 0
    assert seen == list(range(1, 12))


IMAGE = Span(8, 9, "image", b"a" * 16)


@pytest.mark.parametrize(
    ("fields", "cached"),
    [
        ({}, 32),
        ({"cache_domains": (("ab", b"d"),)}, 0),
        ({"cache_domains": (("a", b"bc"),)}, 0),
        ({"cache_domains": ()}, 0),
        ({"spans": (Span(8, 9, "image", b"b" * 16),)}, 8),
        ({"spans": (Span(8, 9, "video", b"a" * 16),)}, 8),
        ({"spans": (Span(8, 8, "image", b"a" * 16),)}, 8),
        ({"spans": (Span(9, 9, "image", b"a" * 16),)}, 8),
        ({"spans": ()}, 8),
        ({"cache_salt": "other"}, 0),
    ],
)
def test_only_equal_contents_share_blocks(fields, cached):
    facts = {"cache_domains": (("ab", b"c"),), "spans": (IMAGE,)}
    engine = Engine(budget=64)
    run_one(engine, "a", **facts)
    assert run_one(engine, "b", **(facts | fields)) == cached


def test_span_after_the_prompt_is_rejected():
    assert not Engine().add("a", prompt(16), 2, spans=(IMAGE,))
    assert Engine().add("a", prompt(17), 2, spans=(IMAGE,))
