"""The scheduler half: places in the batch, preemptions, and the times of steps, of several ranks
the slowest.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from builtin_plugins.features.tracing.detail import NAME, Stay, StepTime
from builtin_plugins.features.tracing.scheduling import Stays


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def request(name: str, *, traced: bool = True) -> Any:
    features = {NAME: b"headers"} if traced else {}
    return SimpleNamespace(request_id=name, features=features, num_preemptions=0, news={})


def plan(
    step: int,
    *,
    new: dict[int, str] | None = None,
    ended: tuple[int, ...] = (),
    rows: tuple[int, ...] = (),
) -> Any:
    placed = [SimpleNamespace(row=row, request_id=name) for row, name in (new or {}).items()]
    return SimpleNamespace(step=step, new=placed, ended=list(ended), rows=list(rows), steady=[])


def told(one: Any) -> Stay:
    return msgspec.msgpack.decode(one.news[NAME], type=Stay)


def test_a_preempted_sequence_has_two_places() -> None:
    stays = Stays(clock=Clock())
    one = request("a")
    stays.arrived(one)  # at 1
    assert (
        stays.planned(plan(1, new={4: "a"}, rows=(4,))) is None
    )  # at 2; nobody asked for times of steps
    stays.planned(plan(2, ended=(4,)))  # at 3
    stays.planned(plan(3, new={2: "a"}, rows=(2,)))  # at 4
    one.num_preemptions = 1
    assert stays.finished(one) is False
    stay = told(one)
    assert (stay.arrived_s, stay.places, stay.preemptions) == (1.0, [(2.0, 3.0), (4.0, 5.0)], 1)


def test_requests_that_are_not_traced_leave_nothing() -> None:
    stays = Stays(detailed=True, clock=Clock())
    one = request("a", traced=False)
    stays.arrived(one)
    assert stays.planned(plan(1, new={0: "a"}, rows=(0,))) is None
    stays.finished(one)
    assert one.news == {}


def test_a_request_that_never_started_was_only_there() -> None:
    stays = Stays(clock=Clock())
    one = request("a")
    stays.arrived(one)
    stays.finished(one)
    assert told(one).places == []


def test_steps_count_for_those_they_compute_and_the_slowest_rank_for_the_step() -> None:
    stays = Stays(detailed=True, clock=Clock())
    one = request("a")
    other = request("b")
    for each in (one, other):
        stays.arrived(each)
    first = stays.planned(plan(7, new={0: "a", 1: "b"}, rows=(0, 1)))
    second = stays.planned(plan(8, rows=(0,)))  # planned ahead of the first one's result
    assert (first, second) == ((7).to_bytes(8, "little"), (8).to_bytes(8, "little"))
    for step, forward_s, execute_s in (
        (7, 1.0, 2.0),
        (7, 3.0, None),
        (7, 2.0, 5.0),
        (8, 10.0, 20.0),
    ):
        stays.result(msgspec.msgpack.encode(StepTime(step, forward_s, execute_s)))
    stays.finished(one)
    stays.finished(other)
    assert (told(one).forward_s, told(one).execute_s) == (13.0, 25.0)
    assert (told(other).forward_s, told(other).execute_s) == (3.0, 5.0)
