"""Plans of recurrent states: whatever the step, every state is that of all tokens before it, each
used once.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.model_spec.kv import RecurrentState
from core.models.layers.state import EvenPlan, Guesses, Run, plan_states, state_views


def follow(run: Run, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """A recurrence in which every token and its place matter: s = 3 s + token, modulo a prime."""
    state = run.load(states)
    out = []
    for token in tokens.unbind(1):
        state = (3 * state + token) % 1009
        out.append(state)
    run.store(states, state)
    return torch.stack(out, 1)


def expected(tokens: list[int]) -> list[int]:
    state = 0
    out = []
    for token in tokens:
        state = (3 * state + token) % 1009
        out.append(state)
    return out


def compute(
    starts: list[int], ends: list[int], tables: list[list[int]], prompts: list[list[int]], size: int
) -> None:
    """Compute what leads to each start, sequence by sequence, then the step as a whole; check every
    result.
    """
    states = torch.zeros(1000, dtype=torch.int64)
    width = max(map(len, tables))
    rows = np.array([table + [0] * (width - len(table)) for table in tables], dtype=np.int32)
    for index, start in enumerate(starts):
        if start:
            plan = plan_states(np.array([0]), np.array([start]), rows[index : index + 1], size)
            plan.compute(
                lambda run, x: follow(run, states, x), torch.tensor(prompts[index][:start])
            )
    counts = np.array(ends) - np.array(starts)
    fed = torch.tensor([t for p, a, b in zip(prompts, starts, ends, strict=True) for t in p[a:b]])
    found = plan_states(np.array(starts), counts, rows, size).compute(
        lambda run, x: follow(run, states, x), fed
    )
    wanted = [s for p, a, b in zip(prompts, starts, ends, strict=True) for s in expected(p)[a:b]]
    assert found.tolist() == wanted
    assert states[0] == 0, "the state before the first token has changed"


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 3, 4, 8, 64]),
    shapes=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=6),
)
def test_any_step_gives_what_each_sequence_gives_alone(
    size: int, shapes: list[tuple[int, int]]
) -> None:
    fresh = count(1)
    starts = [start for start, _ in shapes]
    ends = [start + length for start, length in shapes]
    tables = [[next(fresh) for _ in range(-(-end // size))] for end in ends]
    prompts = [
        [(7 * index + 5 * place) % 101 for place in range(end)] for index, end in enumerate(ends)
    ]
    compute(starts, ends, tables, prompts, size)


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 3, 4]),
    shared=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    own=st.lists(st.integers(1, 6), min_size=5, max_size=5),
)
def test_sequences_read_what_others_write_in_the_same_step(
    size: int, shared: list[int], own: list[int]
) -> None:
    """The first computes a prompt; each other begins with full blocks that were found with the one
    before it.
    """
    fresh = count(1)
    prompt = [(5 * place) % 101 for place in range(30)]
    starts = [0]
    ends = [4 * size + own[0]]
    prompts = [prompt]
    tables = [[next(fresh) for _ in range(-(-(4 * size + own[0]) // size))]]
    for blocks, more in zip(shared, own, strict=False):
        blocks = min(blocks, ends[-1] // size)
        start = blocks * size
        table = tables[-1][:blocks]
        starts.append(start)
        ends.append(start + more)
        tables.append(table + [next(fresh) for _ in range(-(-(start + more) // size) - blocks)])
        prompts.append(
            [
                *prompts[-1][:start],
                *((11 * len(prompts) + 3 * place) % 101 for place in range(more)),
            ]
        )
    states = torch.zeros(1000, dtype=torch.int64)
    width = max(map(len, tables))
    rows = np.array([table + [0] * (width - len(table)) for table in tables], dtype=np.int32)
    fed = torch.tensor([t for p, a, b in zip(prompts, starts, ends, strict=True) for t in p[a:b]])
    plan = plan_states(np.array(starts), np.array(ends) - np.array(starts), rows, size)
    found = plan.compute(lambda run, x: follow(run, states, x), fed)
    assert found.tolist() == [
        s for p, a, b in zip(prompts, starts, ends, strict=True) for s in expected(p)[a:b]
    ]


def test_decoding_is_one_run_and_so_are_equal_prompts() -> None:
    tables = np.arange(1, 9, dtype=np.int32).reshape(4, 2)
    decoding = plan_states(np.array([3, 8, 0, 15]), np.array([1, 1, 1, 1]), tables, 8)
    assert [(run.count, run.length) for run in decoding.runs] == [(4, 1)]
    assert decoding.runs[0].reads.tolist() == [1, 3, 0, 8]
    assert decoding.runs[0].writes.tolist() == [1, 4, 5, 8]
    prompts = plan_states(np.zeros(4, dtype=np.int64), np.full(4, 12), tables, 8)
    assert [(run.count, run.length) for run in prompts.runs] == [(4, 8), (4, 4)]


def test_a_single_token_that_reads_what_another_single_token_completes_comes_after_it() -> None:
    tables = np.array([[1, 0], [1, 2]], dtype=np.int32)
    plan = plan_states(np.array([7, 8]), np.array([1, 1]), tables, 8)
    assert [run.writes.tolist() for run in plan.runs] == [[1], [2]]


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 3, 4, 64]),
    rows=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5
    ),
)
def test_what_holds_of_guesses_is_kept_and_nothing_else(
    size: int, rows: list[tuple[int, int, int]]
) -> None:
    """Each sequence knows some tokens and guesses some, of which some hold; then it goes on from
    those.
    """
    fresh = count(1)
    caches = (torch.zeros(1000, dtype=torch.int64),)
    starts = np.array([known - 1 for known, _, _ in rows])
    guesses = np.array([guessed for _, guessed, _ in rows])
    right = np.minimum(guesses, [holds for _, _, holds in rows])
    prompts = [[7 * row + at * at for at in range(40)] for row in range(len(rows))]
    width = -(-40 // size)
    tables = np.array([[next(fresh) for _ in range(width)] for _ in rows], dtype=np.int32)

    def step(first: Any, counts: Any, wanted: Guesses | None = None) -> list[int]:
        fed = [t for p, a, n in zip(prompts, first, counts, strict=True) for t in p[a : a + n]]
        plan = plan_states(first, counts, tables, size, guesses=wanted)
        found = plan.compute(lambda run, x: follow(run, caches[0], x), torch.tensor(fed))
        if wanted is not None:
            plan.keep(torch.from_numpy(right + 1), caches)
        return found.tolist()

    for row in np.flatnonzero(starts):  # what is known before
        plan = plan_states(np.array([0]), starts[row : row + 1], tables[row : row + 1], size)
        plan.compute(
            lambda run, x: follow(run, caches[0], x), torch.tensor(prompts[row][: starts[row]])
        )
    step(starts, guesses + 1, Guesses(range(len(rows)), guesses, 900))
    ends = starts + 1 + right
    assert step(ends, np.ones_like(ends)) == [
        expected(p)[end] for p, end in zip(prompts, ends, strict=True)
    ]
    for row, end in enumerate(ends):  # states at boundaries may be read by others
        full = range(size - 1, end, size)
        assert [int(caches[0][tables[row][at // size]]) for at in full] == [
            expected(prompts[row])[at] for at in full
        ]


def test_parts_of_a_state_lie_apart_in_every_block() -> None:
    spec = RecurrentState((((3, 5), "bfloat16"), ((2, 2), "float32")))
    memory = torch.zeros(4 * spec.page_bytes(16), dtype=torch.uint8)
    conv, state = state_views(memory, spec, 4)
    assert (conv.shape, conv.dtype, state.shape) == ((4, 3, 5), torch.bfloat16, (4, 2, 2))
    for block in range(4):
        conv[block], state[block] = block + 1, -block - 1
    assert [float(part.float().mean()) for part in conv] == [1.0, 2.0, 3.0, 4.0]
    assert [float(part.mean()) for part in state] == [-1.0, -2.0, -3.0, -4.0]


def test_a_plan_that_was_kept_takes_other_steps_and_changes_nothing_before() -> None:
    padding = 9
    tables = np.array([[3, 4], [5, 6], [padding, padding]], dtype=np.int32)
    states = torch.arange(10)

    def step(starts: list[int]) -> EvenPlan:
        plan = plan_states(np.array(starts), np.ones(3, dtype=np.int64), tables, 4, padding=padding)
        assert isinstance(plan, EvenPlan)
        return plan

    kept = step([3, 0, 0]).kept(8)
    fed = torch.tensor([1, 2, 3])
    before = states.clone()
    for _ in range(3):
        kept.compute(lambda run, x: follow(run, states, x), fed)
    assert torch.equal(states[:padding], before[:padding])
    for starts in ([3, 0, 0], [4, 1, 0], [5, 2, 0]):
        wanted = states.clone()
        plan = step(starts)
        out = plan.compute(lambda run, x, own=wanted: follow(run, own, x), fed)
        kept.take(plan)
        assert torch.equal(kept.compute(lambda run, x: follow(run, states, x), fed), out)
        assert torch.equal(states, wanted)
    assert states[0] == 0, "padding begins a sequence, and what it computes goes elsewhere"


def test_a_step_in_which_one_reads_what_another_writes_is_none_that_can_be_kept() -> None:
    tables = np.array([[1, 2], [1, 3]], dtype=np.int32)
    assert not hasattr(plan_states(np.array([3, 4]), np.array([1, 1]), tables, 4), "kept")
    assert not hasattr(
        plan_states(np.array([3, 4]), np.array([1, 2]), tables[[0, 0]] + [[0, 0], [5, 5]], 4),
        "kept",
    )
