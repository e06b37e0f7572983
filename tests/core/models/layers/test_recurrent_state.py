"""Plans of recurrent states: every state contains each earlier token once, for any step."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.model_spec.kv import RecurrentState
from core.models.layers.state import (
    DecodeStatePlan,
    DraftTokens,
    SegmentGroup,
    plan_states,
    state_views,
)


def follow(run: SegmentGroup, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """A recurrence in which every token and its position matter: s = 3 s + token, modulo a
    prime.
    """
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
    """Compute the prefix of each sequence, then the step; check every result."""
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
    target = [s for p, a, b in zip(prompts, starts, ends, strict=True) for s in expected(p)[a:b]]
    assert found.tolist() == target
    assert states[0] == 0, "the state before the first token has changed"


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 3, 4, 8, 64]),
    shapes=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=6),
)
def test_batched_state_steps_equal_single_sequences(
    size: int, shapes: list[tuple[int, int]]
) -> None:
    fresh = count(1)
    starts = [start for start, _ in shapes]
    ends = [start + length for start, length in shapes]
    tables = [[next(fresh) for _ in range(-(-end // size))] for end in ends]
    prompts = [
        [(7 * index + 5 * position) % 101 for position in range(end)]
        for index, end in enumerate(ends)
    ]
    compute(starts, ends, tables, prompts, size)


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 3, 4]),
    shared=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    own=st.lists(st.integers(1, 6), min_size=5, max_size=5),
)
def test_sequence_reads_state_written_in_same_step(
    size: int, shared: list[int], own: list[int]
) -> None:
    """The first computes a prompt; each other starts with cached blocks of the preceding one."""
    fresh = count(1)
    prompt = [(5 * position) % 101 for position in range(30)]
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
                *((11 * len(prompts) + 3 * position) % 101 for position in range(more)),
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


def test_decode_and_equal_prompts_form_one_segment_group() -> None:
    tables = np.arange(1, 9, dtype=np.int32).reshape(4, 2)
    decoding = plan_states(np.array([3, 8, 0, 15]), np.array([1, 1, 1, 1]), tables, 8)
    assert [(run.count, run.length) for run in decoding.runs] == [(4, 1)]
    assert decoding.runs[0].reads.tolist() == [1, 3, 0, 8]
    assert decoding.runs[0].writes.tolist() == [1, 4, 5, 8]
    prompts = plan_states(np.zeros(4, dtype=np.int64), np.full(4, 12), tables, 8)
    assert [(run.count, run.length) for run in prompts.runs] == [(4, 8), (4, 4)]


def test_decode_token_runs_after_the_token_that_completes_its_state() -> None:
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
def test_only_accepted_draft_states_are_committed(
    size: int, rows: list[tuple[int, int, int]]
) -> None:
    """Each sequence has known tokens and draft tokens; it continues after the accepted ones."""
    fresh = count(1)
    caches = (torch.zeros(1000, dtype=torch.int64),)
    starts = np.array([known - 1 for known, _, _ in rows])
    drafts = np.array([num_drafts for _, num_drafts, _ in rows])
    accepted = np.minimum(drafts, [num_accepted for _, _, num_accepted in rows])
    prompts = [[7 * row + at * at for at in range(40)] for row in range(len(rows))]
    width = -(-40 // size)
    tables = np.array([[next(fresh) for _ in range(width)] for _ in rows], dtype=np.int32)

    def step(first: Any, counts: Any, expected_drafts: DraftTokens | None = None) -> list[int]:
        fed = [t for p, a, n in zip(prompts, first, counts, strict=True) for t in p[a : a + n]]
        plan = plan_states(first, counts, tables, size, drafts=expected_drafts)
        found = plan.compute(lambda run, x: follow(run, caches[0], x), torch.tensor(fed))
        if expected_drafts is not None:
            plan.keep(torch.from_numpy(accepted + 1), caches)
        return found.tolist()

    for row in np.flatnonzero(starts):  # earlier tokens
        plan = plan_states(np.array([0]), starts[row : row + 1], tables[row : row + 1], size)
        plan.compute(
            lambda run, x: follow(run, caches[0], x), torch.tensor(prompts[row][: starts[row]])
        )
    step(starts, drafts + 1, DraftTokens(range(len(rows)), drafts, 900))
    ends = starts + 1 + accepted
    assert step(ends, np.ones_like(ends)) == [
        expected(p)[end] for p, end in zip(prompts, ends, strict=True)
    ]
    for row, end in enumerate(ends):  # states at boundaries may be read by others
        full = range(size - 1, end, size)
        assert [int(caches[0][tables[row][at // size]]) for at in full] == [
            expected(prompts[row])[at] for at in full
        ]


def test_state_parts_are_separate_in_every_block() -> None:
    spec = RecurrentState((((3, 5), "bfloat16"), ((2, 2), "float32")))
    memory = torch.zeros(4 * spec.page_bytes(16), dtype=torch.uint8)
    conv, state = state_views(memory, spec, 4)
    assert (conv.shape, conv.dtype, state.shape) == ((4, 3, 5), torch.bfloat16, (4, 2, 2))
    for block in range(4):
        conv[block] = block + 1
        state[block] = -block - 1
    assert [float(part.float().mean()) for part in conv] == [1.0, 2.0, 3.0, 4.0]
    assert [float(part.mean()) for part in state] == [-1.0, -2.0, -3.0, -4.0]


def test_static_plan_copies_steps_and_writes_only_padding_before() -> None:
    padding = 9
    tables = np.array([[3, 4], [5, 6], [padding, padding]], dtype=np.int32)
    states = torch.arange(10)

    def step(starts: list[int]) -> DecodeStatePlan:
        plan = plan_states(np.array(starts), np.ones(3, dtype=np.int64), tables, 4, padding=padding)
        assert isinstance(plan, DecodeStatePlan)
        return plan

    static = step([3, 0, 0]).to_static(8)
    fed = torch.tensor([1, 2, 3])
    before = states.clone()
    for _ in range(3):
        static.compute(lambda run, x: follow(run, states, x), fed)
    assert torch.equal(states[:padding], before[:padding])
    for starts in ([3, 0, 0], [4, 1, 0], [5, 2, 0]):
        target = states.clone()
        plan = step(starts)
        out = plan.compute(lambda run, x, own=target: follow(run, own, x), fed)
        static.copy_from(plan)
        assert torch.equal(static.compute(lambda run, x: follow(run, states, x), fed), out)
        assert torch.equal(states, target)
    assert states[0] == 0, "padding reads the initial state and writes its own block"


def test_dependent_step_has_no_static_plan() -> None:
    tables = np.array([[1, 2], [1, 3]], dtype=np.int32)
    assert not hasattr(plan_states(np.array([3, 4]), np.array([1, 1]), tables, 4), "to_static")
    assert not hasattr(
        plan_states(np.array([3, 4]), np.array([1, 2]), tables[[0, 0]] + [[0, 0], [5, 5]], 4),
        "to_static",
    )
