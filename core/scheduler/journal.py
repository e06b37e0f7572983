"""A record of everything that went into a scheduler and every plan that came out; `core.testing.replay` repeats it.

The file is a sequence of length-prefixed msgpack frames.
"""

from __future__ import annotations

from typing import BinaryIO, Final

import msgspec

from core.errors import EngineError
from core.kv_spec import KVLayout
from core.scheduler.limits import SchedulerLimits
from core.scheduler.scheduler import Scheduler
from core.step import EngineRequest, StepPlan, StepResult

VERSION: Final = 1
LENGTH_BYTES: Final = 4
"""Of the length, little-endian, before each frame."""


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
        self._write(header_of(scheduler))

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
            self._file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)


def header_of(scheduler: Scheduler) -> Header:
    """Return what a scheduler was made of."""
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
