"""The ledger of requests that go on while the API process restarts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.clients.process.resumable import KEEP_S, NAME, RequestLedger
from core.api import SamplingParams
from core.api.execution import EngineRequest, RequestDelta, StepOutputs


def request(request_id: str, *, resumable: bool = True) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[1],
        sampling=SamplingParams(),
        seed=0,
        max_tokens=100,
        features={NAME: b"1"} if resumable else {},
    )


def tokens_of(deltas: Any, request_id: str) -> list[int]:
    return [token for each in deltas if each.request_id == request_id for token in each.token_ids]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("columns"), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
        st.tuples(st.just("counts"), st.lists(st.integers(0, 3), min_size=2, max_size=2)),
        st.tuples(st.just("delta"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        st.tuples(st.just("death"), st.just([])),
    ),
    max_size=30,
)


@given(STEPS, st.booleans())
def test_every_server_gets_all_tokens_from_the_first_on(
    steps: list[tuple[str, list[int]]], ends: bool
) -> None:
    ledger = RequestLedger()
    ledger.open([request("a"), request("b", resumable=False)])
    all_tokens: list[int] = []
    received: list[int] = []
    for number, (kind, values) in enumerate(steps):
        if kind == "death":
            ledger.on_server_death()
            assert "b" not in ledger
            claimed = ledger.claim([request("a")])
            assert claimed is not None
            received = tokens_of(claimed, "a")
            continue
        outputs = {
            "columns": StepOutputs(request_ids=["b", "a"], token_ids=values),
            "counts": StepOutputs(
                request_ids=["b", "a"],
                token_ids=[number] * sum(values),
                counts=values,
            ),
            "delta": StepOutputs(deltas=[RequestDelta(request_id="a", token_ids=values)]),
        }[kind]
        all_tokens += tokens_of(outputs, "a")
        received += tokens_of(ledger.record(outputs), "a")
        assert received == all_tokens
    if ends:
        last = RequestDelta(request_id="a", token_ids=[7], finish_reason="stop")
        ledger.on_server_death()
        assert not ledger.record(StepOutputs(deltas=[last]))
        claimed = ledger.claim([request("a")])
        assert claimed is not None
        assert tokens_of(claimed, "a") == [*all_tokens, 7]
        assert claimed[-1].finish_reason == "stop"
        assert "a" not in ledger


def test_outputs_are_held_until_the_request_is_claimed() -> None:
    ledger = RequestLedger()
    ledger.open([request("a"), request("b")])
    ledger.on_server_death()
    step = StepOutputs(request_ids=["a", "b", "c"], token_ids=[1, 2, 3])
    assert tokens_of(ledger.record(step), "c") == [3]
    assert [each.request_id for each in ledger.record(step)] == ["c"]
    assert ledger.claim([request("a"), request("x")]) is None
    claimed = ledger.claim([request("a")])
    assert claimed is not None
    assert tokens_of(claimed, "a") == [1, 1]
    assert ledger.claim([request("a")]) is None, "it is claimed already"
    assert [each.request_id for each in ledger.record(step)] == ["a", "c"]


def test_requests_that_are_not_claimed_in_time_are_given_up_once() -> None:
    now_s = [0.0]
    ledger = RequestLedger(lambda: now_s[0])
    ledger.open([request("a"), request("b")])
    assert ledger.expired() == []
    ledger.on_server_death()
    ledger.claim([request("a")])
    now_s[0] = KEEP_S - 1
    assert ledger.expired() == []
    now_s[0] = KEEP_S
    assert ledger.expired() == ["b"]
    assert ledger.expired() == []
    assert "a" in ledger


def test_ledger_without_resumable_requests_passes_outputs_on() -> None:
    ledger = RequestLedger()
    ledger.open([request("a", resumable=False)])
    step = StepOutputs(request_ids=["a"], token_ids=[1])
    assert ledger.record(step) is step
