"""Scheduler extension of tracing: residencies, preemptions, and step times of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from builtin_plugins.features.tracing.messages import BatchResidency, StepTime
from builtin_plugins.features.tracing.scheduling import ResidencyTracker
from builtin_plugins.features.tracing.settings import NAME


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def request(name: str, *, traced: bool = True) -> Any:
    features = {NAME: b"headers"} if traced else {}
    return SimpleNamespace(
        request_id=name, features=features, num_preemptions=0, feature_outputs={}
    )


def plan(
    step: int,
    *,
    new: dict[int, str] | None = None,
    ended: tuple[int, ...] = (),
    rows: tuple[int, ...] = (),
) -> Any:
    placed = [SimpleNamespace(row=row, request_id=name) for row, name in (new or {}).items()]
    return SimpleNamespace(
        step=step, new=placed, ended=list(ended), rows=list(rows), decode_rows=[]
    )


def residency_of(one: Any) -> BatchResidency:
    return msgspec.msgpack.decode(one.feature_outputs[NAME], type=BatchResidency)


def test_preempted_sequence_has_two_residencies() -> None:
    tracker = ResidencyTracker(clock=Clock())
    one = request("a")
    tracker.arrived(one)  # at 1
    # at 2; no detailed times are requested
    assert tracker.planned(plan(1, new={4: "a"}, rows=(4,))) is None
    tracker.planned(plan(2, ended=(4,)))  # at 3
    tracker.planned(plan(3, new={2: "a"}, rows=(2,)))  # at 4
    one.num_preemptions = 1
    assert tracker.finished(one) is False
    residency = residency_of(one)
    assert (residency.arrived_s, residency.spans, residency.preemptions) == (
        1.0,
        [(2.0, 3.0), (4.0, 5.0)],
        1,
    )


def test_untraced_requests_record_nothing() -> None:
    tracker = ResidencyTracker(detailed=True, clock=Clock())
    one = request("a", traced=False)
    tracker.arrived(one)
    assert tracker.planned(plan(1, new={0: "a"}, rows=(0,))) is None
    tracker.finished(one)
    assert one.feature_outputs == {}


def test_unstarted_request_has_no_residency() -> None:
    tracker = ResidencyTracker(clock=Clock())
    one = request("a")
    tracker.arrived(one)
    tracker.finished(one)
    assert residency_of(one).spans == []


def test_step_times_use_slowest_rank() -> None:
    tracker = ResidencyTracker(detailed=True, clock=Clock())
    one = request("a")
    other = request("b")
    for each in (one, other):
        tracker.arrived(each)
    first = tracker.planned(plan(7, new={0: "a", 1: "b"}, rows=(0, 1)))
    second = tracker.planned(plan(8, rows=(0,)))  # planned ahead of the first one's result
    assert (first, second) == ((7).to_bytes(8, "little"), (8).to_bytes(8, "little"))
    for step, forward_s, execute_s in (
        (7, 1.0, 2.0),
        (7, 3.0, None),
        (7, 2.0, 5.0),
        (8, 10.0, 20.0),
    ):
        tracker.result(msgspec.msgpack.encode(StepTime(step, forward_s, execute_s)))
    tracker.finished(one)
    tracker.finished(other)
    assert (residency_of(one).forward_s, residency_of(one).execute_s) == (13.0, 25.0)
    assert (residency_of(other).forward_s, residency_of(other).execute_s) == (3.0, 5.0)
