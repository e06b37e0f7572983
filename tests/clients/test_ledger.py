"""The ledger: whatever dies when, clients get every token once, the guilty are found and nobody
else is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.clients.process.ledger import MOST_KILLS, MOST_STRIKES, Death, Ledger
from core.step import EngineRequest, Logprobs, RequestDelta, StepNews
from core.types import SamplingParams

SAMPLING = SamplingParams(max_tokens=8, prompt_logprobs=0)


def request(name: str) -> EngineRequest:
    return EngineRequest(
        request_id=name, prompt_token_ids=[1, 2, 3], sampling=SAMPLING, seed=0, max_tokens=8
    )


def token(name: str, position: int) -> int:
    """What the model says: a function of the request and the position, as in float32."""
    return hash((name, position)) % 1000


def as_news(deltas: list[RequestDelta], *, columns: bool) -> StepNews:
    """What a step says of requests: those that got a token and nothing else may stand in columns."""
    plain = [d for d in deltas if columns and d.finish_reason is None and d.prompt_logprobs is None]
    rest = [d for d in deltas if d not in plain]
    return StepNews([d.request_id for d in plain], [d.token_ids[0] for d in plain], rest)


class Clients:
    """What clients have received, and the engine that gives it to them."""

    def __init__(self, names: list[str], poison: dict[str, int]) -> None:
        self.ledger = Ledger()
        self.ledger.open(map(request, names))
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

    def live(self, draw: random.Random, steps: int) -> bool:
        """One life: suspects are tried alone, then all run. Say whether a request has killed it."""
        trials = list(self.first)
        rest = list(self.waiting)
        tried: list[str] | None = []
        running: dict[str, EngineRequest] = {}
        given: set[str] = set()
        for _ in range(steps):
            if trials:
                running = self.resumed([trials[0]], given)
            elif tried is not None:
                running = self.resumed(tried + rest, given)
                tried = None
            running = {name: r for name, r in running.items() if name in self.ledger}
            if running:
                step = draw.sample(sorted(running), draw.randrange(1, len(running) + 1))
                self.ledger.start(step)
                if any(self.poison.get(name, -1) == len(self.tokens[name]) for name in step):
                    return True
                deltas = [self.compute(name, running[name], given) for name in step]
                self.take(self.ledger.take(as_news(deltas, columns=draw.random() < 0.5)))
            if trials and tried is not None:
                tried.append(trials.pop(0))
                self.ledger.rest(tried[-1])
        return False

    def resumed(self, names: list[str], given: set[str]) -> dict[str, EngineRequest]:
        given.difference_update(names)
        return {r.request_id: r for r in map(self.ledger.resumption, names) if r is not None}

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

    def die(self, death: Death) -> None:
        self.first, self.waiting = self.ledger.bury(death)
        self.take(self.ledger.condemned())

    first: list[str] = []
    waiting: list[str] = []


@given(
    st.integers(1, 8),
    st.integers(0, 2),
    st.sampled_from(Death),
    st.randoms(use_true_random=False),
)
def test_every_token_arrives_once_and_only_the_guilty_are_failed(
    count: int, guilty: int, death: Death, draw: random.Random
) -> None:
    names = [f"r{i}" for i in range(count)]
    poison = {name: draw.randrange(8) for name in names[:guilty]}
    clients = Clients(names, poison)
    clients.waiting = names
    strikes = MOST_KILLS if death is Death.KILLED else MOST_STRIKES
    deaths = 0
    while len(clients.ledger):
        killed = clients.live(draw, steps=200)
        if killed:
            clients.die(death)
            deaths += 1
        assert deaths <= (strikes + 2) * len(poison)
    for name in names:
        condemned = name in poison
        assert clients.ended[name] == ("error" if condemned else "length")
        length = poison.get(name, 8)
        assert clients.tokens[name] == [token(name, position) for position in range(length)]
        assert clients.prompt[name] == (2 if length else 0)


@given(
    st.integers(1, 6),
    st.sampled_from([Death.KILLED, Death.UNCLEAR]),
    st.randoms(use_true_random=False),
)
def test_kills_from_outside_cost_nobody_anything(
    count: int, death: Death, draw: random.Random
) -> None:
    """As long as each life brings everybody further; a kill inside a trial is a strike, the next
    token wipes it out.
    """
    names = [f"r{i}" for i in range(count)]
    clients = Clients(names, {})
    clients.waiting = names
    while len(clients.ledger):
        clients.live(draw, steps=2 * count + 2)
        if len(clients.ledger):
            clients.die(death)
    assert set(clients.ended.values()) == {"length"}
    assert all(
        clients.tokens[name] == [token(name, position) for position in range(8)] for name in names
    )


def test_after_a_kill_from_outside_all_go_on_together_and_after_a_second_in_one_place_alone() -> (
    None
):
    ledger = Ledger()
    ledger.open([request("a"), request("b")])
    ledger.start(["a", "b"])
    assert ledger.bury(Death.KILLED) == ([], ["a", "b"])
    for name in ("a", "b"):
        ledger.resumption(name)
    ledger.take(StepNews(["b"], [7]))
    ledger.start(["a"])
    assert ledger.bury(Death.KILLED) == (["a"], ["b"])
    assert not ledger.condemned()


def test_who_has_left_is_owed_nothing() -> None:
    ledger = Ledger()
    ledger.open([request("a"), request("b")])
    assert ledger.close("a")
    assert not ledger.close("a")
    assert not ledger.take(StepNews(["a"], [1]))
    assert [delta.token_ids for delta in ledger.take(StepNews(["a", "b"], [1, 2]))] == [[2]]
    assert [
        delta.token_ids for delta in ledger.take(StepNews(["a", "b"], [1, 3, 4], counts=[1, 2]))
    ] == [[3, 4]]
    assert ledger.resumption("a") is None
    assert [*ledger.resumption("b").output_token_ids] == [2, 3, 4]  # type: ignore[union-attr]
    assert ledger.close("b")
    assert ledger.bury(Death.FAULT) == ([], [])
