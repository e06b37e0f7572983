"""A record of everything that went into a scheduler and every plan that came out, and its exact replay.

The scheduler is a pure function of its calls, so replaying the inputs must give the same plans; where it does
not, the first difference is named. The file is a sequence of length-prefixed msgpack frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import msgspec

from core.contracts import SchedulingPolicy
from core.errors import EngineError
from core.kv import KVManager
from core.kv_spec import KVLayout
from core.scheduler.limits import SchedulerLimits
from core.scheduler.scheduler import Scheduler
from core.step import EngineRequest, StepPlan, StepResult

VERSION: Final = 1
_LENGTH_BYTES: Final = 4


class Header(msgspec.Struct, frozen=True):
    """What a scheduler was made of."""

    version: int
    limits: SchedulerLimits
    layout: KVLayout
    prefix_caching: bool
    identity: str
    depth: int
    policy: str
    extensions: list[str]


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One event, after the `num_schedules`-th call of `schedule`."""

    kind: str
    clock_s: float
    num_schedules: int
    data: msgspec.Raw


class Journal:
    """Writes what happens to one scheduler. Call each method next to the call of the scheduler it names.

    Not for calls by an extension from within its own methods: an extension given to `replay` makes them again.
    """

    def __init__(self, path: str, scheduler: Scheduler) -> None:
        try:
            self._file: BinaryIO | None = open(path, "wb")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise EngineError(f"--journal {path} cannot be written: {error.strerror}. Name another file.") from error
        self._scheduler = scheduler
        self._encoder = msgspec.msgpack.Encoder()
        self._write(_header_of(scheduler))

    def add(self, clock_s: float, request: EngineRequest) -> None:
        """A request was queued (a refused one changes nothing and is not recorded)."""
        self._event("add", clock_s, request)

    def abort(self, clock_s: float, request_id: str) -> None:
        """A request is aborted; unknown ids are harmless."""
        self._event("abort", clock_s, request_id)

    def wake(self, clock_s: float, request_id: str) -> None:
        """A parked request is woken."""
        self._event("wake", clock_s, request_id)

    def release(self, clock_s: float, request_id: str) -> None:
        """Kept blocks are released."""
        self._event("release", clock_s, request_id)

    def recompute(self, clock_s: float, request_id: str, position: int) -> None:
        """Part of what a request has cached is distrusted."""
        self._event("recompute", clock_s, (request_id, position))

    def reset_prefix_cache(self, clock_s: float) -> None:
        """The prefix cache is reset."""
        self._event("reset", clock_s, None)

    def plan(self, clock_s: float, plan: StepPlan) -> None:
        """`schedule` returned a plan. Calls that returned None are known from the count."""
        self._event("plan", clock_s, plan)

    def result(self, clock_s: float, result: StepResult) -> None:
        """A result was taken."""
        self._event("result", clock_s, result)

    def fail(self, clock_s: float, message: str) -> None:
        """Everything in flight failed."""
        self._event("fail", clock_s, message)

    def close(self) -> None:
        """Write everything out; safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _event(self, kind: str, clock_s: float, data: object) -> None:
        raw = msgspec.Raw(self._encoder.encode(data))
        self._write(Frame(kind, clock_s, self._scheduler.num_schedules, raw))

    def _write(self, frame: object) -> None:
        if self._file is not None:
            data = self._encoder.encode(frame)
            self._file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found."""

    num_events: int
    num_plans: int
    """Plans compared and equal."""
    difference: str | None = None
    """The first plan that came out otherwise, recorded and replayed; None if all are identical."""
    note: str | None = None
    """Something to know about the file: it ends in the middle of a frame."""

    @property
    def identical(self) -> bool:
        """Say whether every recorded plan came out again."""
        return self.difference is None


def replay(path: str, *, policy: SchedulingPolicy | None = None, extensions: Sequence[Any] = ()) -> ReplayReport:
    """Run a journal through a fresh scheduler and compare every plan.

    `policy` and `extensions` must be of the recorded kinds; code is never loaded because a file names it.
    Raises `EngineError` if they are not, or if the file is no journal.
    """
    with open(path, "rb") as file:
        frames, truncated = _frames(file)
    if not frames:
        raise EngineError(f"{path} is no journal: it has no complete header.")
    try:
        header = msgspec.msgpack.decode(frames[0], type=Header)
        events = [msgspec.msgpack.decode(data, type=Frame) for data in frames[1:]]
    except (msgspec.MsgspecError, EngineError) as error:
        raise EngineError(f"{path} is no journal of version {VERSION}: {error}") from error
    scheduler = Scheduler(
        header.limits,
        KVManager(header.layout, prefix_caching=header.prefix_caching, identity=header.identity),
        policy=policy,
        extensions=extensions,
        depth=header.depth,
    )
    if header != _header_of(scheduler):
        raise EngineError(
            f"{path} was recorded by version {header.version} with policy {header.policy!r} and extensions "
            f"{header.extensions}; give replay the same ones."
        )
    note = "the last frame is incomplete: the recording process ended while it wrote." if truncated else None
    num_plans = 0
    for number, (event, difference) in enumerate(_run(scheduler, events), 1):
        if difference is not None:
            return ReplayReport(number, num_plans, difference, note)
        num_plans += event.kind == "plan"
    return ReplayReport(len(events), num_plans, None, note)


def _run(scheduler: Scheduler, events: Sequence[Frame]) -> Iterator[tuple[Frame, str | None]]:
    """Apply events one by one; yield each with the difference it showed, if any."""
    decode = msgspec.msgpack.decode
    for event in events:
        plan = None
        while scheduler.num_schedules < event.num_schedules:
            if plan is not None:
                yield event, f"schedule call {scheduler.num_schedules}: recorded no plan, replayed {plan}"
            plan = scheduler.schedule()
        if event.kind == "plan":
            recorded = decode(event.data, type=StepPlan)
            if plan != recorded:
                yield event, f"schedule call {event.num_schedules}: recorded {recorded}, replayed {plan}"
        elif plan is not None:
            yield event, f"schedule call {scheduler.num_schedules}: recorded no plan, replayed {plan}"
        elif event.kind == "add":
            scheduler.add(decode(event.data, type=EngineRequest))
        elif event.kind == "result":
            scheduler.update(decode(event.data, type=StepResult))
        elif event.kind == "fail":
            scheduler.fail_in_flight(decode(event.data, type=str))
        elif event.kind == "reset":
            scheduler.reset_prefix_cache()
        elif event.kind == "recompute":
            scheduler.recompute(*decode(event.data, type=tuple[str, int]))
        elif event.kind in ("abort", "wake", "release"):
            getattr(scheduler, event.kind)(decode(event.data, type=str))
        else:
            raise EngineError(f"the journal holds an event {event.kind!r} that this version does not know.")
        yield event, None


def _frames(file: BinaryIO) -> tuple[list[bytes], bool]:
    """Return the complete frames, and whether an incomplete one follows."""
    data, frames, at = file.read(), [], 0
    while at + _LENGTH_BYTES <= len(data):
        start = at + _LENGTH_BYTES
        end = start + int.from_bytes(data[at:start], "little")
        if end > len(data):
            break
        frames.append(data[start:end])
        at = end
    return frames, at < len(data)


def _header_of(scheduler: Scheduler) -> Header:
    kv = scheduler.kv
    return Header(
        version=VERSION,
        limits=scheduler.limits,
        layout=kv.layout,
        prefix_caching=kv.prefix_caching,
        identity=kv.identity,
        depth=scheduler.depth,
        policy=type(scheduler.policy).__qualname__,
        extensions=scheduler.extension_names,
    )
