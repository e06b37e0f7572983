"""The scheduling half alone: holders, eviction, and no starvation."""

from __future__ import annotations

import random
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from builtin_plugins.features.lora.messages import AdapterRef, AdapterStatus, LoadResult, StepUpdate
from builtin_plugins.features.lora.scheduling import MAX_QUEUE_JUMP_STEPS, AdapterSlots
from core.api import InvalidRequest, RequestFailed

encode = msgspec.msgpack.encode


class FakeEngine:
    """Stand-in for the scheduler and the workers."""

    def __init__(self, max_loras: int, max_cpu_loras: int, num_ranks: int = 1) -> None:
        self.slots = AdapterSlots(max_loras, max_cpu_loras, num_ranks)
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
        features = (
            {}
            if adapter is None
            else {"lora": encode(AdapterRef(adapter.encode(), adapter, adapter))}
        )
        self.queue.append(
            SimpleNamespace(
                request_id=request_id, features=features, feature_outputs={}, row=next(self.rows)
            )
        )

    def plan(self) -> list[str]:
        """Take one step; return the started requests."""
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
        update = (
            StepUpdate() if payload is None else msgspec.msgpack.decode(payload, type=StepUpdate)
        )
        self.held -= set(update.drop)
        self.loading += [ref.digest for ref in update.load]
        self.num_loads += len(update.load)
        for slot, digest in update.slots:
            assert digest in self.held, "what is put into a slot is in memory"
            self.in_slot[slot] = digest
        assert len(self.held) + len(self.loading) <= self.slots._cache.max_adapters
        rows = dict(update.rows)
        for request in started:
            self.running[request.request_id] = request
            if request.features:
                ref = msgspec.msgpack.decode(request.features["lora"], type=AdapterRef)
                assert self.in_slot[rows[request.row]] == ref.digest
        self.slots.check()
        return [request.request_id for request in started]

    def load(self, error: str = "", unmatched: tuple[str, ...] = ()) -> None:
        """Finish all pending loads."""
        loading = self.loading
        self.loading = []
        for digest in loading:
            if not error:
                self.held.add(digest)
            for rank in self.ranks:
                self.slots.result(encode(LoadResult(digest, rank, error, list(unmatched))))

    def end(self, request_id: str) -> None:
        self.slots.finished(self.running.pop(request_id))

    def listed(self) -> dict[str, AdapterStatus]:
        answer = self.slots.call("list", b"")
        assert answer is not None
        return {held.name: held for held in msgspec.json.decode(answer, type=list[AdapterStatus])}


def test_request_waits_for_its_adapter_only() -> None:
    engine = FakeEngine(1, 1)
    engine.add("a", "x")
    engine.add("b", None)
    assert engine.plan() == ["b"]
    assert not engine.slots.pending()
    engine.load()
    assert engine.plan() == ["a"]


def test_slot_is_reassigned_when_unused() -> None:
    engine = FakeEngine(1, 2)
    for name, adapter in (("a1", "x"), ("a2", "x"), ("b", "y")):
        engine.add(name, adapter)
    engine.plan()
    engine.load()
    assert engine.plan() == ["a1", "a2"]
    engine.end("a1")
    assert engine.plan() == []
    engine.end("a2")
    assert engine.plan() == ["b"]
    engine.add("a3", "x")
    engine.end("b")
    assert engine.plan() == ["a3"]
    assert engine.num_loads == 2, "x was in memory all the time"


def test_least_recently_used_adapter_is_evicted_unless_pinned() -> None:
    engine = FakeEngine(1, 2)
    for turn, adapter in enumerate(("x", "y", "x", "z", "x", "y")):
        engine.add(str(turn), adapter)
        engine.plan()
        engine.load()
        engine.plan()
        engine.end(str(turn))
    assert engine.num_loads == 4, "z evicted y, and y evicted z"
    engine.slots.call("pin", encode(AdapterRef(b"y", "y", "y")))
    engine.add("late", "x")
    assert engine.plan() == []
    with pytest.raises(InvalidRequest, match="cannot be pinned"):
        engine.slots.call("pin", encode(AdapterRef(b"x", "x", "x")))
    assert "pinned" in engine.failed["late"], "it would wait for ever"
    engine.slots.call("unload", encode(AdapterRef(b"y", "y", "y")))
    engine.add("later", "x")
    assert engine.plan() == ["later"]


def test_failed_load_fails_its_requests_and_is_retried() -> None:
    engine = FakeEngine(2, 2)
    for name, adapter in (("a", "x"), ("b", "x"), ("c", None)):
        engine.add(name, adapter)
    assert engine.plan() == ["c"]
    engine.load(error="it is broken")
    engine.plan()
    assert engine.failed == {"a": "adapter 'x': it is broken", "b": "adapter 'x': it is broken"}
    engine.add("d", "x")
    engine.plan()
    engine.load(unmatched=("one.lora_A", "two.lora_A"))
    engine.plan()
    assert "no target for 'one.lora_A', 'two.lora_A'" in engine.failed["d"]
    engine.add("e", "x")
    engine.plan()
    engine.load()
    assert engine.plan() == ["e"]


def test_all_ranks_must_load_and_one_target_suffices() -> None:
    engine = FakeEngine(1, 1, num_ranks=2)
    engine.add("a", "x")
    engine.plan()
    engine.loading.remove(b"x")
    engine.held.add(b"x")
    engine.slots.result(encode(LoadResult(b"x", 0, "", ["layers.9"])))
    assert engine.plan() == []
    engine.slots.result(encode(LoadResult(b"x", 1, "", ["layers.0"])))
    assert engine.plan() == ["a"], "each tensor has a target on some rank"


def test_waiting_adapter_gets_a_slot_eventually() -> None:
    engine = FakeEngine(1, 2)
    engine.add("x0", "x")
    engine.plan()
    engine.load()
    engine.plan()
    engine.add("y", "y")
    engine.plan()
    engine.load()
    for turn in range(1, 3 * MAX_QUEUE_JUMP_STEPS):
        engine.add(f"x{turn}", "x")
        engine.plan()
        if f"x{turn - 1}" in engine.running:
            engine.end(f"x{turn - 1}")
        if "y" in engine.running:
            return
    pytest.fail("y never ran")


def test_random_traffic_leaks_no_state() -> None:
    draw = random.Random(3)
    engine = FakeEngine(3, 7)
    sent = 0
    while sent < 400 or engine.queue or engine.parked or engine.running:
        if sent < 400:
            engine.add(str(sent), draw.choice([None, *"abcdefghijklmnopqrstuvwxyz"]))
            sent += 1
        engine.plan()
        if draw.random() < 0.5:
            engine.load(error="broken" if draw.random() < 0.1 else "")
        for name in list(engine.running):
            if draw.random() < 0.3:
                engine.end(name)
        if engine.parked and draw.random() < 0.1:  # a client leaves
            engine.slots.finished(engine.parked.pop(draw.choice(sorted(engine.parked))))
    assert all(held.running == held.waiting == 0 for held in engine.listed().values())
    assert engine.slots._errors == engine.slots._waiting == {}
