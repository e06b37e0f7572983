"""Steps in flight of a pipeline decode different rows, and keep all stages busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.executors.pipeline.scheduling import PipelineScheduler
from core.step import StepPlan
from tests.core.scheduler.fake_worker import VOCAB, Engine

STAGE_S = 0.005
"""Time of a stage for a step, or for a step with `FULL_TOKENS` tokens."""
FULL_TOKENS = 12
HOST_S = 0.0005
"""Time from a result to the next plan."""


def prompt(length: int, first: int = 1) -> list[int]:
    return [1 + (first * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


def pipelined(stages: int, ahead: int, num_rows: int = FULL_TOKENS, **settings: int) -> Engine:
    return Engine(
        depth=stages + ahead,
        max_num_seqs=num_rows,
        extensions=[PipelineScheduler(num_rows, stages)],
        **settings,
    )


def constant_s(plan: StepPlan) -> float:
    """Return the time of a stage that is bound by reading its weights."""
    return STAGE_S


def linear_s(plan: StepPlan) -> float:
    """Return the time of a stage that is bound by its products."""
    return STAGE_S * plan.num_tokens / FULL_TOKENS


def simulate(
    engine: Engine, stages: int, stage_s: Callable[[StepPlan], float], *, overlaps: bool = True
) -> float:
    """Return the seconds until all requests have ended on a pipeline of virtual devices.

    Stages compute in order. The first one waits for the tokens of the rows that it decodes, without
    overlap for those of the last step.
    """
    free_s = [0.0] * stages
    token_s: dict[int, float] = {}
    ends: deque[float] = deque()
    now_s = 0.0
    while engine.scheduler.has_work:
        while (plan := engine.schedule()) is not None:
            done_s = max([now_s, *(token_s.get(row, 0.0) for row in plan.decode_rows)])
            if not overlaps:
                done_s = max(done_s, free_s[-1])
            for stage in range(stages):
                done_s = max(done_s, free_s[stage]) + stage_s(plan)
                free_s[stage] = done_s
            rows = [*plan.decode_rows, *(plan.rows[index] for index in plan.samples)]
            token_s |= dict.fromkeys(rows, done_s)
            ends.append(done_s)
        engine.collect()
        now_s = max(now_s, ends.popleft()) + HOST_S
    engine.check_outputs()
    engine.check_idle()
    return max(free_s)


def add_decodes(engine: Engine) -> None:
    for i in range(FULL_TOKENS):
        engine.add(f"r{i}", prompt(2, i), 40, eos_token_ids=())


def add_prompts(engine: Engine) -> None:
    for i in range(4):
        engine.add(f"r{i}", prompt(48, i), 1, eos_token_ids=())


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(
    ("add", "stage_s"),
    [(add_decodes, linear_s), (add_prompts, constant_s)],
    ids=lambda f: f.__name__,
)
def test_overlap_multiplies_throughput(
    add: Callable[[Engine], None], stage_s: Callable[[StepPlan], float], stages: int, ahead: int
) -> None:
    serial = Engine(depth=1 + ahead, max_num_seqs=FULL_TOKENS, budget=12, num_blocks=400)
    overlapped = pipelined(stages, ahead, budget=12, num_blocks=400)
    add(serial)
    add(overlapped)
    without_s = simulate(serial, stages, stage_s, overlaps=False)
    with_s = simulate(overlapped, stages, stage_s)
    print(f"{without_s:.3f} s without overlap, {with_s:.3f} s with it")
    assert without_s >= 0.8 * stages * with_s


@pytest.mark.parametrize("stages", [2, 3])
def test_decoding_bound_by_weights_loses_nothing(stages: int) -> None:
    """Each stage reads its weights once per round, however many rows a round has."""
    serial = Engine(depth=2, max_num_seqs=FULL_TOKENS, num_blocks=400)
    overlapped = pipelined(stages, 1, num_blocks=400)
    add_decodes(serial)
    add_decodes(overlapped)
    without_s = simulate(serial, stages, constant_s, overlaps=False)
    assert simulate(overlapped, stages, constant_s) <= 1.05 * without_s


def test_single_request_never_waits_for_the_host() -> None:
    engine = pipelined(2, 1)
    engine.add("a", prompt(3), 30, eos_token_ids=())
    assert simulate(engine, 2, constant_s) == pytest.approx(30 * 2 * STAGE_S)


def test_decode_rows_do_not_wait_for_tokens_next_to_prompt_chunks() -> None:
    engine = pipelined(2, 1, budget=8, num_blocks=400)
    engine.add("a", prompt(4), 20, eos_token_ids=())
    engine.step()
    engine.add("b", prompt(48, 2), 1, eos_token_ids=())
    while "b" not in engine.finished:
        engine.step()
    decoded = [bool(plan.decode_rows) for plan in engine.plans if plan.rows][2:]
    assert decoded == [number % 2 == decoded.index(True) for number in range(len(decoded))]


def test_executor_that_does_not_overlap_decodes_all_rows_at_once() -> None:
    engine = Engine(depth=1, extensions=[PipelineScheduler(4, 2)])
    for i in range(4):
        engine.add(f"r{i}", prompt(3, i), 5, eos_token_ids=())
    engine.run()
    assert [len(plan.decode_rows) for plan in engine.plans] == [0, 4, 4, 4, 4]


class Held:
    """An extension that lets no other token of one request be decoded."""

    name = "held"

    def limits(self, rows: Any) -> dict[int, int]:
        return {row: 0 for row in rows.rows.tolist() if rows.request(row).request_id == "held"}


def test_rows_that_another_extension_holds_delay_no_other_row() -> None:
    engine = Engine(depth=2, extensions=[Held(), PipelineScheduler(4, 2)])
    engine.add("held", prompt(3), 5, eos_token_ids=())
    engine.add("free", prompt(3, 2), 5, eos_token_ids=())
    for _ in range(6):
        engine.step()
    assert len(engine.outputs["held"]) == 1
    assert "free" in engine.finished


REQUESTS = st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 30))
"""(step of arrival, prompt tokens, maximum of new tokens)."""


@given(
    stages=st.integers(2, 4),
    ahead=st.integers(0, 2),
    num_blocks=st.sampled_from([16, 24, 200]),
    num_rows=st.integers(1, 7),
    arrivals=st.lists(REQUESTS, min_size=1, max_size=12),
    aborts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 11)), max_size=4),
    failure=st.one_of(st.none(), st.integers(1, 40)),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_random_workloads_keep_their_tokens(
    stages: int,
    ahead: int,
    num_blocks: int,
    num_rows: int,
    arrivals: list[tuple[int, int, int]],
    aborts: list[tuple[int, int]],
    failure: int | None,
) -> None:
    engine = pipelined(stages, ahead, num_rows, num_blocks=num_blocks)
    last = max(step for step, *_ in (*arrivals, *aborts))
    for step in range(10_000):
        for number, (arrival, length, max_tokens) in enumerate(arrivals):
            if arrival == step:
                engine.add(f"r{number}", prompt(length, number), max_tokens)
        for moment, which in aborts:
            if moment == step and f"r{which}" in engine.requests:
                engine.abort(f"r{which}")
        if step == failure:
            engine.fail_steps()
        in_flight = {row for item in engine.worker.queue for row in sampled(item.plan)}
        while (plan := engine.schedule()) is not None:
            assert len(plan.decode_rows) <= -(-num_rows // stages)
            assert ahead or in_flight.isdisjoint(sampled(plan)), "a row computes in two steps"
            in_flight |= set(sampled(plan))
        if engine.worker.queue:
            engine.collect()
        elif step > last and not engine.scheduler.has_work:
            break
    assert set(engine.finished) == set(engine.requests)
    engine.check_outputs()
    engine.check_idle()


def sampled(plan: StepPlan) -> list[int]:
    return [*plan.decode_rows, *(plan.rows[index] for index in plan.samples)]
