"""The scheduler half by itself: who holds what, what is forgotten for whom, and that nobody waits
for ever.
"""

from __future__ import annotations

import random
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from builtin_plugins.features.lora.messages import Held, News, Told, Wanted
from builtin_plugins.features.lora.scheduling import PATIENCE_STEPS, Slots
from core.api import InvalidRequest, RequestFailed

encode = msgspec.msgpack.encode


class Beside:
    """The scheduler and the workers, as far as this half sees them."""

    def __init__(self, max_loras: int, max_held: int, num_ranks: int = 1) -> None:
        self.slots = Slots(max_loras, max_held, num_ranks)
        self.slots.attach(self)
        self.queue: list[Any] = []
        self.parked: dict[str, Any] = {}
        self.running: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        self.in_slot: dict[int, bytes] = {}
        self.loading: list[bytes] = []
        self.held: set[bytes] = set()
        self.num_loads = self.step = 0
        self.ranks = range(num_ranks)
        self.rows = count()

    def wake(self, request_id: str) -> None:
        if request_id in self.parked:
            self.queue.append(self.parked.pop(request_id))

    def add(self, request_id: str, adapter: str | None) -> None:
        wanted = (
            {} if adapter is None else {"lora": encode(Wanted(adapter.encode(), adapter, adapter))}
        )
        self.queue.append(
            SimpleNamespace(request_id=request_id, features=wanted, news={}, row=next(self.rows))
        )

    def plan(self) -> list[str]:
        """Take one step; return who has started."""
        self.step += 1
        started = []
        waiting = self.queue
        self.queue = []
        for request in waiting:
            try:
                if self.slots.may_start(request):
                    started.append(request)
                else:
                    self.parked[request.request_id] = request
            except RequestFailed as error:
                self.failed[request.request_id] = str(error)
                self.slots.finished(request)
        payload = self.slots.planned(SimpleNamespace(step=self.step, new=started))  # type: ignore[arg-type]
        news = News() if payload is None else msgspec.msgpack.decode(payload, type=News)
        self.held -= set(news.drop)
        self.loading += [wanted.digest for wanted in news.load]
        self.num_loads += len(news.load)
        for slot, digest in news.slots:
            assert digest in self.held, "what is put into a slot is in memory"
            self.in_slot[slot] = digest
        assert len(self.held) + len(self.loading) <= self.slots._max_held
        rows = dict(news.rows)
        for request in started:
            self.running[request.request_id] = request
            if request.features:
                wanted = msgspec.msgpack.decode(request.features["lora"], type=Wanted)
                assert self.in_slot[rows[request.row]] == wanted.digest
        self.slots.check()
        return [request.request_id for request in started]

    def load(self, error: str = "", unplaced: tuple[str, ...] = ()) -> None:
        """Let workers finish what they load."""
        loading = self.loading
        self.loading = []
        for digest in loading:
            if not error:
                self.held.add(digest)
            for rank in self.ranks:
                self.slots.result(encode(Told(digest, rank, error, list(unplaced))))

    def end(self, request_id: str) -> None:
        self.slots.finished(self.running.pop(request_id))

    def listed(self) -> dict[str, Held]:
        answer = self.slots.call("list", b"")
        assert answer is not None
        return {held.name: held for held in msgspec.json.decode(answer, type=list[Held])}


def test_a_request_waits_for_its_adapter_and_others_do_not() -> None:
    beside = Beside(1, 1)
    beside.add("a", "x")
    beside.add("b", None)
    assert beside.plan() == ["b"]
    assert not beside.slots.pending()
    beside.load()
    assert beside.plan() == ["a"]


def test_a_slot_changes_hands_when_nobody_holds_it() -> None:
    beside = Beside(1, 2)
    for name, adapter in (("a1", "x"), ("a2", "x"), ("b", "y")):
        beside.add(name, adapter)
    beside.plan()
    beside.load()
    assert beside.plan() == ["a1", "a2"]
    beside.end("a1")
    assert beside.plan() == []
    beside.end("a2")
    assert beside.plan() == ["b"]
    beside.add("a3", "x")
    beside.end("b")
    assert beside.plan() == ["a3"]
    assert beside.num_loads == 2, "x was in memory all the time"


def test_the_one_that_was_used_longest_ago_is_forgotten_and_pinned_ones_stay() -> None:
    beside = Beside(1, 2)
    for turn, adapter in enumerate(("x", "y", "x", "z", "x", "y")):
        beside.add(str(turn), adapter)
        beside.plan()
        beside.load()
        beside.plan()
        beside.end(str(turn))
    assert beside.num_loads == 4, "z took the place of y, and y of z"
    beside.slots.call("pin", encode(Wanted(b"y", "y", "y")))
    beside.add("late", "x")
    assert beside.plan() == []
    with pytest.raises(InvalidRequest, match="cannot be pinned"):
        beside.slots.call("pin", encode(Wanted(b"x", "x", "x")))
    assert "pinned" in beside.failed["late"], "it would wait for ever"
    beside.slots.call("unload", encode(Wanted(b"y", "y", "y")))
    beside.add("later", "x")
    assert beside.plan() == ["later"]


def test_a_load_that_fails_fails_those_who_asked_and_is_tried_again() -> None:
    beside = Beside(2, 2)
    for name, adapter in (("a", "x"), ("b", "x"), ("c", None)):
        beside.add(name, adapter)
    assert beside.plan() == ["c"]
    beside.load(error="it is broken")
    beside.plan()
    assert beside.failed == {"a": "adapter 'x': it is broken", "b": "adapter 'x': it is broken"}
    beside.add("d", "x")
    beside.plan()
    beside.load(unplaced=("one.lora_A", "two.lora_A"))
    beside.plan()
    assert "no place for 'one.lora_A', 'two.lora_A'" in beside.failed["d"]
    beside.add("e", "x")
    beside.plan()
    beside.load()
    assert beside.plan() == ["e"]


def test_all_ranks_must_have_it_and_one_place_is_enough() -> None:
    beside = Beside(1, 1, num_ranks=2)
    beside.add("a", "x")
    beside.plan()
    beside.loading.remove(b"x")
    beside.held.add(b"x")
    beside.slots.result(encode(Told(b"x", 0, "", ["layers.9"])))
    assert beside.plan() == []
    beside.slots.result(encode(Told(b"x", 1, "", ["layers.0"])))
    assert beside.plan() == ["a"], "each tensor has a place on some rank"


def test_nobody_waits_behind_adapters_that_never_leave() -> None:
    beside = Beside(1, 2)
    beside.add("x0", "x")
    beside.plan()
    beside.load()
    beside.plan()
    beside.add("y", "y")
    beside.plan()
    beside.load()
    for turn in range(1, 3 * PATIENCE_STEPS):
        beside.add(f"x{turn}", "x")
        beside.plan()
        if f"x{turn - 1}" in beside.running:
            beside.end(f"x{turn - 1}")
        if "y" in beside.running:
            return
    pytest.fail("y never ran")


def test_random_traffic_leaks_nothing() -> None:
    draw = random.Random(3)
    beside = Beside(3, 7)
    sent = 0
    while sent < 400 or beside.queue or beside.parked or beside.running:
        if sent < 400:
            beside.add(str(sent), draw.choice([None, *"abcdefghijklmnopqrstuvwxyz"]))
            sent += 1
        beside.plan()
        if draw.random() < 0.5:
            beside.load(error="broken" if draw.random() < 0.1 else "")
        for name in list(beside.running):
            if draw.random() < 0.3:
                beside.end(name)
        if beside.parked and draw.random() < 0.1:  # a client leaves
            beside.slots.finished(beside.parked.pop(draw.choice(sorted(beside.parked))))
    assert all(held.running == held.waiting == 0 for held in beside.listed().values())
    assert beside.slots._errors == beside.slots._waiting == {}
