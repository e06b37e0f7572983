"""RequestTracker: after any engine death clients get every token once; only the culprit fails."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.clients.process.request_tracker import (
    MAX_CRASHES,
    MAX_KILLS,
    MAX_SHARED_CRASHES,
    MAX_WAITING_CRASHES,
    DeathCause,
    RequestTracker,
)
from core.step import EngineRequest, Logprobs, RequestDelta, StepOutputs
from core.types import SamplingParams

SAMPLING = SamplingParams(max_tokens=8, prompt_logprobs=0)


def request(name: str) -> EngineRequest:
    return EngineRequest(
        request_id=name, prompt_token_ids=[1, 2, 3], sampling=SAMPLING, seed=0, max_tokens=8
    )


def token(name: str, position: int) -> int:
    """Return the token of the fake model: a function of request and position."""
    return hash((name, position)) % 1000


def step_outputs(deltas: list[RequestDelta], *, columns: bool) -> StepOutputs:
    """Return the outputs of a step; deltas with only a token may use columns."""
    plain = [d for d in deltas if columns and d.finish_reason is None and d.prompt_logprobs is None]
    others = [d for d in deltas if d not in plain]
    return StepOutputs([d.request_id for d in plain], [d.token_ids[0] for d in plain], others)


class Clients:
    """Outputs received by the clients, and a fake engine."""

    def __init__(self, names: list[str], poison: dict[str, int]) -> None:
        self.tracker = RequestTracker()
        self.tracker.open(map(request, names))
        self.poison = poison
        self.tokens: dict[str, list[int]] = {name: [] for name in names}
        self.prompt: dict[str, int] = dict.fromkeys(names, 0)
        self.ended: dict[str, str] = {}

    def take(self, deltas: Iterable[RequestDelta]) -> None:
        for delta in deltas:
            self.tokens[delta.request_id] += delta.token_ids
            self.prompt[delta.request_id] += len(delta.prompt_logprobs or ())
            if delta.finish_reason is not None:
                assert delta.request_id not in self.ended
                self.ended[delta.request_id] = delta.finish_reason

    def run(self, draw: random.Random, steps: int) -> bool:
        """Run one engine process: probe suspects alone, then run all. Return whether it died."""
        probes = list(self.first)
        rest = list(self.waiting)
        probed: list[str] | None = []
        running: dict[str, EngineRequest] = {}
        given: set[str] = set()
        for _ in range(steps):
            if probes:
                running = self.resumed([probes[0]], given)
            elif probed is not None:
                running = self.resumed(probed + rest, given)
                probed = None
            running = {name: r for name, r in running.items() if name in self.tracker}
            if running:
                step = draw.sample(sorted(running), draw.randrange(1, len(running) + 1))
                self.tracker.start(step)
                if any(self.poison.get(name, -1) == len(self.tokens[name]) for name in step):
                    return True
                deltas = [self.compute(name, running[name], given) for name in step]
                self.take(self.tracker.record(step_outputs(deltas, columns=draw.random() < 0.5)))
            if probes and probed is not None and not self.tracker.is_suspect(probes[0]):
                probed.append(probes.pop(0))
                self.tracker.mark_removed(probed[-1])
        return False

    def resumed(self, names: list[str], given: set[str]) -> dict[str, EngineRequest]:
        given.difference_update(names)
        return {r.request_id: r for r in map(self.tracker.resumed_request, names) if r is not None}

    def compute(self, name: str, source: EngineRequest, given: set[str]) -> RequestDelta:
        position = len(self.tokens[name])
        fresh = source.sampling.prompt_logprobs is not None and name not in given
        given.add(name)
        return RequestDelta(
            request_id=name,
            token_ids=[token(name, position)],
            prompt_logprobs=[Logprobs([1], [0.0], 1)] * 2 if fresh else None,
            finish_reason="length" if position == 7 else None,
        )

    def die(self, cause: DeathCause) -> None:
        self.first, self.waiting = self.tracker.on_engine_death(cause)
        self.take(self.tracker.failed_requests())

    first: list[str] = []
    waiting: list[str] = []


@given(
    st.integers(1, 8),
    st.integers(0, 2),
    st.sampled_from(DeathCause),
    st.randoms(use_true_random=False),
)
def test_every_token_is_delivered_once_and_only_the_culprit_fails(
    count: int, num_culprits: int, cause: DeathCause, draw: random.Random
) -> None:
    names = [f"r{i}" for i in range(count)]
    poison = {name: draw.randrange(8) for name in names[:num_culprits]}
    clients = Clients(names, poison)
    clients.waiting = names
    limit = MAX_KILLS if cause is DeathCause.KILLED else MAX_CRASHES
    deaths = 0
    while len(clients.tracker):
        killed = clients.run(draw, steps=200)
        if killed:
            clients.die(cause)
            deaths += 1
        assert deaths <= (limit + 2) * len(poison)
    for name in names:
        assert clients.ended[name] == ("error" if name in poison else "length")
        length = poison.get(name, 8)
        assert clients.tokens[name] == [token(name, position) for position in range(length)]
        assert clients.prompt[name] == (2 if length else 0)


@given(
    st.integers(1, 6),
    st.sampled_from([DeathCause.KILLED, DeathCause.UNCLEAR]),
    st.randoms(use_true_random=False),
)
def test_external_kills_fail_no_request(count: int, cause: DeathCause, draw: random.Random) -> None:
    """A kill during a probe counts as a crash; the next token resets the count."""
    names = [f"r{i}" for i in range(count)]
    clients = Clients(names, {})
    clients.waiting = names
    while len(clients.tracker):
        clients.run(draw, steps=2 * count + 2)
        if len(clients.tracker):
            clients.die(cause)
    assert set(clients.ended.values()) == {"length"}
    assert all(
        clients.tokens[name] == [token(name, position) for position in range(8)] for name in names
    )


def test_second_kill_at_the_same_token_count_probes_requests_alone() -> None:
    tracker = RequestTracker()
    tracker.open([request("a"), request("b")])
    tracker.start(["a", "b"])
    assert tracker.on_engine_death(DeathCause.KILLED) == ([], ["a", "b"])
    for name in ("a", "b"):
        tracker.resumed_request(name)
    tracker.record(StepOutputs(["b"], [7]))
    tracker.start(["a"])
    assert tracker.on_engine_death(DeathCause.KILLED) == (["a"], ["b"])
    assert not tracker.failed_requests()


def test_request_that_ran_alone_may_move_after_its_first_kill_only() -> None:
    tracker = RequestTracker()
    tracker.open([request("a")])
    tracker.record(StepOutputs(["a"], [7]))
    assert tracker.on_engine_death(DeathCause.KILLED) == (["a"], [])
    assert tracker.may_move("a")
    tracker.resumed_request("a")
    tracker.start(["a"])
    assert tracker.on_engine_death(DeathCause.KILLED) == (["a"], [])
    assert not tracker.may_move("a")


@pytest.mark.parametrize("cause", [DeathCause.UNCLEAR, DeathCause.FAULT])
def test_request_that_may_have_killed_its_engine_does_not_move(cause: DeathCause) -> None:
    tracker = RequestTracker()
    tracker.open([request("a")])
    tracker.record(StepOutputs(["a"], [7]))
    assert tracker.on_engine_death(cause) == (["a"], [])
    assert not tracker.may_move("a")


def test_closed_request_gets_no_output() -> None:
    tracker = RequestTracker()
    tracker.open([request("a"), request("b")])
    assert tracker.close("a")
    assert not tracker.close("a")
    assert not tracker.record(StepOutputs(["a"], [1]))
    assert [delta.token_ids for delta in tracker.record(StepOutputs(["a", "b"], [1, 2]))] == [[2]]
    assert [
        delta.token_ids
        for delta in tracker.record(StepOutputs(["a", "b"], [1, 3, 4], counts=[1, 2]))
    ] == [[3, 4]]
    assert tracker.resumed_request("a") is None
    assert [*tracker.resumed_request("b").output_token_ids] == [2, 3, 4]  # type: ignore[union-attr]
    assert tracker.close("b")
    assert tracker.on_engine_death(DeathCause.FAULT) == ([], [])


def test_culprit_that_waits_is_found_while_a_neighbor_gets_tokens() -> None:
    """A request may kill the engine before its first step: by its adapter or its constraint."""
    tracker = RequestTracker()
    tracker.open([request("neighbor"), request("culprit")])
    deaths = 0
    probes: list[str] = []
    while "culprit" in tracker:
        running = probes[:1] or ["neighbor", "culprit"]
        for name in running:
            tracker.resumed_request(name)
        tracker.start(running[:1])
        if "neighbor" in running:
            tracker.record(StepOutputs(["neighbor"], [deaths]))
        probes, _ = tracker.on_engine_death(DeathCause.UNCLEAR)
        deaths += 1
        failed = tracker.failed_requests()
        probes = [name for name in probes if name != "neighbor"]  # it passes its probe
        assert deaths <= MAX_WAITING_CRASHES + MAX_CRASHES
        assert tracker.has_suspects() or failed
    assert [delta.request_id for delta in failed] == ["culprit"]
    assert "neighbor" in tracker


@pytest.mark.parametrize("every", [1, 5, 20, 90])
@pytest.mark.parametrize("cause", [DeathCause.UNCLEAR, DeathCause.FAULT])
def test_culprit_that_gets_tokens_between_deaths_is_found(cause: DeathCause, every: int) -> None:
    """It runs at each death, at another token each time, next to requests that get tokens, too."""
    names = ["culprit", "a", "b"]
    tracker = RequestTracker()
    tracker.open(map(request, names))
    probes: list[str] = []
    deaths = 0
    while "culprit" in tracker:
        since = dict.fromkeys(names, 0)
        for name in probes:  # alone, until it is clear
            tracker.resumed_request(name)
            tracker.start([name])
            while tracker.is_suspect(name) and since["culprit"] < every:
                tracker.record(StepOutputs([name], [1]))
                since[name] += 1
            if since["culprit"] == every:
                break
            tracker.mark_removed(name)
        else:
            for name in names:
                tracker.resumed_request(name)
            for _ in range(every - since["culprit"]):
                tracker.record(StepOutputs(names, [1] * len(names)))
        probes, _ = tracker.on_engine_death(cause)
        failed = [delta.request_id for delta in tracker.failed_requests()]
        deaths += 1
        assert failed in ([], ["culprit"])
        assert deaths <= MAX_SHARED_CRASHES + every.bit_length() + MAX_KILLS
    assert "a" in tracker
    assert "b" in tracker


def test_kills_from_outside_suspect_no_waiting_request() -> None:
    tracker = RequestTracker()
    tracker.open([request("neighbor"), request("other"), request("waiting")])
    for kill in range(20):
        tracker.start(["neighbor", "other"])
        tracker.record(StepOutputs(["neighbor", "other"], [kill, kill]))
        assert tracker.on_engine_death(DeathCause.KILLED)[0] == []
        assert not tracker.has_suspects()
        for name in ("neighbor", "other", "waiting"):
            tracker.resumed_request(name)
