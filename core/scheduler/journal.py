"""Journal: every call of a scheduler and every plan it returned;
`core.scheduler.replay` reads it.

The file is a sequence of length-prefixed msgpack frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final, Literal, TypeVar

import msgspec

from core.errors import EngineError
from core.model_spec.kv import KVLayout
from core.scheduler.limits import SchedulerLimits
from core.scheduler.scheduler import Scheduler
from core.step import EngineRequest, RequestDelta, StepOutputs, StepPlan, StepResult

T = TypeVar("T")

VERSION: Final = 4
LENGTH_BYTES: Final = 4
"""Bytes of the little-endian length before each frame."""


Kind = Literal[
    "add",
    "abort",
    "wake",
    "loaded",
    "release",
    "recompute",
    "message",
    "reset",
    "plan",
    "result",
    "fail",
]
"""Scheduler call of a frame; the frame's data is its argument, or a pair of
arguments.
"""


class Header(msgspec.Struct, frozen=True):
    """The construction parameters of the recorded scheduler."""

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

    kind: Kind
    clock_s: float
    num_schedules: int
    data: msgspec.Raw


class Journal:
    """A scheduler that records its calls, except those that raise; use it
    instead of the scheduler.

    Calls that an extension makes from within its own methods are not recorded: in a
    replay the extension makes them again.
    """

    def __init__(
        self, path: str, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            self._file: BinaryIO | None = open(path, "wb")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise EngineError(
                f"--journal {path} cannot be written: {error.strerror}. Name another file."
            ) from error
        self._scheduler = scheduler
        self._clock = clock
        self._codec = msgspec.msgpack.Encoder()
        self._write(header_of(scheduler))
        scheduler.call_soon = lambda method, *arguments: getattr(self, method)(*arguments)

    def __getattr__(self, name: str) -> Any:
        """Return what is not recorded: state, and calls that change none."""
        return getattr(self._scheduler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "call_soon":
            self._scheduler.call_soon = value
        else:
            object.__setattr__(self, name, value)

    def schedule(self) -> StepPlan | None:
        """Return the next plan; the count of calls records those without a
        plan.
        """
        plan = self._scheduler.schedule()
        if plan is not None:
            self._record("plan", plan)
        return plan

    def update(self, result: StepResult) -> StepOutputs:
        """Read a step result."""
        return self._recorded("result", result, self._scheduler.update(result))

    def add(self, request: EngineRequest) -> None:
        """Queue one sequence."""
        self._scheduler.add(request)
        self._record("add", request)

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request."""
        return self._recorded("abort", request_id, self._scheduler.abort(request_id))

    def wake(self, request_id: str) -> None:
        """Queue a parked request."""
        self._scheduler.wake(request_id)
        self._record("wake", request_id)

    def loaded(self, request_id: str) -> None:
        """Confirm a request's loaded blocks."""
        self._scheduler.loaded(request_id)
        self._record("loaded", request_id)

    def release(self, request_id: str) -> None:
        """Free blocks that an extension holds."""
        self._scheduler.release(request_id)
        self._record("release", request_id)

    def recompute(self, request_id: str, position: int) -> None:
        """Invalidate what a request has cached."""
        self._scheduler.recompute(request_id, position)
        self._record("recompute", (request_id, position))

    def receive_message(self, name: str, payload: bytes) -> None:
        """Pass an extension a payload of its worker half."""
        self._scheduler.receive_message(name, payload)
        self._record("message", (name, payload))

    def reset_prefix_cache(self) -> bool:
        """Clear the prefix cache."""
        return self._recorded("reset", None, self._scheduler.reset_prefix_cache())

    def fail_in_flight(self, message: str) -> list[RequestDelta]:
        """End every request of the plans in flight."""
        return self._recorded("fail", message, self._scheduler.fail_in_flight(message))

    def close(self) -> None:
        """Flush and close the file, and close the scheduler; safe to call
        twice.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        self._scheduler.close()

    def _recorded(self, kind: Kind, data: object, answer: T) -> T:
        self._record(kind, data)
        return answer

    def _record(self, kind: Kind, data: object) -> None:
        raw = msgspec.Raw(self._codec.encode(data))
        self._write(Frame(kind, self._clock(), self._scheduler.num_schedules, raw))

    def _write(self, frame: object) -> None:
        if self._file is not None:
            data = self._codec.encode(frame)
            self._file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)


def header_of(scheduler: Scheduler) -> Header:
    """Return the journal header of a scheduler."""
    kv = scheduler.kv
    # `type(policy)` would return the class of its timing proxy.
    policy = scheduler.policy.__class__.__qualname__
    return Header(
        version=VERSION,
        limits=scheduler.limits,
        layout=kv.layout,
        prefix_caching=kv.prefix_caching,
        identity=kv.identity,
        depth=scheduler.depth,
        policy=policy,
        extensions=scheduler.extension_names,
    )
