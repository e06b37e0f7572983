"""A record of everything that went into a scheduler and every plan that came out; `core.testing.replay` repeats it.

The file is a sequence of length-prefixed msgpack frames.
"""

from __future__ import annotations

from typing import BinaryIO, Final, Literal

import msgspec

from core.errors import EngineError
from core.kv_spec import KVLayout
from core.scheduler.limits import SchedulerLimits
from core.scheduler.scheduler import Scheduler

VERSION: Final = 2
LENGTH_BYTES: Final = 4
"""Of the length, little-endian, before each frame."""


Kind = Literal["add", "abort", "wake", "release", "recompute", "reset", "plan", "result", "fail"]
"""Which call of the scheduler; its argument is the frame's data (of "recompute", a pair; of "fail", the message)."""


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

    kind: Kind
    clock_s: float
    num_schedules: int
    data: msgspec.Raw


class Journal:
    """Writes what happens to one scheduler: call `record` behind each call of the scheduler's that raised nothing.

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

    def record(self, kind: Kind, clock_s: float, data: object) -> None:
        """Write what was given to the scheduler, or the plan it gave; `schedule` calls without one show in the count."""
        raw = msgspec.Raw(self._encoder.encode(data))
        self._write(Frame(kind, clock_s, self._scheduler.num_schedules, raw))

    def close(self) -> None:
        """Write everything out; safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

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
