"""Journal: every call of a scheduler and every plan it returned;
`core.testing.replay` reads it.

The file is a sequence of length-prefixed msgpack frames.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final

import msgspec

from core.errors import EngineError
from core.model_spec.kv import KVLayout
from core.scheduler.limits import SchedulerLimits
from core.scheduler.scheduler import Scheduler
from core.step import StepPlan

log = logging.getLogger(__name__)
VERSION: Final = 4
LENGTH_BYTES: Final = 4
"""Bytes of the little-endian length before each frame."""


RECORDED: Final = {
    "add": "add",
    "abort": "abort",
    "wake": "wake",
    "loaded": "loaded",
    "release": "release",
    "recompute": "recompute",
    "receive_message": "message",
    "reset_prefix_cache": "reset",
    "update": "result",
    "fail_in_flight": "fail",
}
"""Kind of the frame of each scheduler method, besides "plan" of `schedule`."""


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
    """One event, after the `num_schedules`-th call of `schedule`.

    Its data is the argument of the call, or a pair of arguments.
    """

    kind: str
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
        """Return a scheduler's attribute; calls that change its state are recorded."""
        found = getattr(self._scheduler, name)
        kind = RECORDED.get(name)
        if kind is None:
            return found

        def recorded(*arguments: Any) -> Any:
            answer = found(*arguments)
            self._record(kind, arguments if len(arguments) > 1 else next(iter(arguments), None))
            return answer

        return recorded

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "call_soon":
            self._scheduler.call_soon = value
        else:
            object.__setattr__(self, name, value)

    def schedule(self) -> StepPlan | None:
        """Return the next plan; the count of calls records those without a plan."""
        plan = self._scheduler.schedule()
        if plan is not None:
            self._record("plan", plan)
        return plan

    def close(self) -> None:
        """Flush and close the file, and close the scheduler; safe to call twice."""
        self._close_file()
        self._scheduler.close()

    def _record(self, kind: str, data: object) -> None:
        raw = msgspec.Raw(self._codec.encode(data))
        self._write(Frame(kind, self._clock(), self._scheduler.num_schedules, raw))

    def _write(self, frame: object) -> None:
        if self._file is None:
            return
        data = self._codec.encode(frame)
        try:
            self._file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
        except OSError as error:
            log.error("--journal ends here, requests go on: %s", error)
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the disk is full
                self._file.close()
            self._file = None


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
