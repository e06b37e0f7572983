"""Streamed answers that outlive their connections: each event is held, and can be sent again.

A client that lost its connection continues the stream after the last event that it has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import HTTPException

from core.api import InvalidRequest

if TYPE_CHECKING:
    from core.api.serving import ServedEngine

MAX_RUNS: Final = 256
"""Largest number of running answers at once; no connection limits them."""
MAX_OWNER_RUNS: Final = 64
"""Largest number of running answers of one owner at once."""
MAX_OWNER_BYTES: Final = 16 * 1024 * 1024
"""Largest size of the held events of one owner."""
EVENT_BYTES: Final = 64
"""Size of a held event in addition to its bytes."""
HELD_S: Final = 300.0
"""Seconds for which the events of an answer that has ended are held."""
_END: Final = b"\n\n"


class EventRun:
    """One answer, with the events of its stream."""

    def __init__(
        self,
        owner: str,
        run_id: str,
        state: dict[str, Any] | None = None,
        resume_s: float | None = None,
    ) -> None:
        """`resume_s`: seconds without a reader after which it is cancelled; None: never."""
        self.owner = owner
        self.id = run_id
        self.state = state
        """Current state of the answer, of which clients may read it whole."""
        self.num_bytes = 0
        """Size of the held events."""
        self.ended_s: float | None = None
        """Time of the end; None while it is running."""
        self.task: asyncio.Task[None] | None = None
        self.on_end: Callable[[], None] = lambda: None
        """Called at the end of the answer, not at that of the process."""
        self._resume_s = resume_s
        self._events: list[bytes] = []
        self._first = 0
        """Number of the first held event."""
        self._error: BaseException | None = None
        self._num_readers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """Whether further events may come."""
        return self.ended_s is None

    def append(self, encoded: bytes) -> int:
        """Add one or several events to the stream; return their size."""
        events = [event + _END for event in encoded.split(_END)[:-1]]
        size = sum(map(len, events)) + EVENT_BYTES * len(events)
        self._events += events
        self.num_bytes += size
        self._wake()
        return size

    def drop_first(self, num_bytes: int) -> int:
        """Drop the first events, of at least this size together; return their size."""
        size = 0
        count = 0
        while size < num_bytes and count < len(self._events):
            size += len(self._events[count]) + EVENT_BYTES
            count += 1
        del self._events[:count]
        self._first += count
        self.num_bytes -= size
        return size

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, with an error that its readers raise after the events."""
        self.ended_s = time.monotonic()
        self._error = error
        self._set_timer(None)
        self._wake()

    def await_reader(self) -> None:
        """Cancel the answer if it gets no reader in time."""
        self._set_timer(self._resume_s)

    async def cancel(self) -> None:
        """Cancel the answer, and wait until it has ended."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})

    async def events(self, start: int = 0, *, numbered: bool = False) -> AsyncGenerator[bytes]:
        """Yield the events from number `start`, as they come; `numbered` adds their ids.

        Raises `InvalidRequest` for events that are not held any more.
        """
        self._num_readers += 1
        self._set_timer(None)
        try:
            while True:
                while start < self._first + len(self._events):
                    self.check(start)
                    event = self._events[start - self._first]
                    yield b"id: %d\n%b" % (start, event) if numbered else event
                    start += 1
                if not self.is_running:
                    if self._error is not None:
                        raise self._error
                    return
                await self._changed.wait()
        finally:
            self._num_readers -= 1
            if not self._num_readers and self.is_running and self._resume_s is not None:
                self._set_timer(self._resume_s)

    def check(self, start: int) -> None:
        """Raise `InvalidRequest` if event `start` is not held any more."""
        if start < self._first:
            raise InvalidRequest(
                "starting_after",
                f"got {start - 1}; expected at least {self._first - 1}, since earlier events are "
                "not held any more.",
            )

    def _set_timer(self, seconds: float | None) -> None:
        """Cancel the answer after some time, or not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and self.task is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self.task.cancel)

    def _wake(self) -> None:
        changed = self._changed
        self._changed = asyncio.Event()
        changed.set()


class EventRuns:
    """The running answers, and those that have ended lately, by owner and id."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[tuple[str, str], EventRun] = {}
        self._bytes: dict[str, int] = {}
        """Size of the held events, by owner."""

    @classmethod
    def shared(cls, engine: ServedEngine) -> EventRuns:
        """Return the runs of all routes of an engine, which share the limits of an owner."""
        found: EventRuns = engine.registry.shared("event runs", cls)
        return found

    def get(self, owner: str, run_id: str) -> EventRun | None:
        """Return an owner's answer with held events, or None."""
        self._forget_old()
        return self._runs.get((owner, run_id))

    def running(self, owner: str, run_id: str) -> EventRun | None:
        """Return an owner's running answer, or None."""
        run = self._runs.get((owner, run_id))
        return run if run is not None and run.is_running else None

    def forget(self, run: EventRun) -> None:
        """Hold the events of an answer no longer."""
        if self._runs.get((run.owner, run.id)) is run:
            del self._runs[run.owner, run.id]
            self._count(run.owner, -run.num_bytes)

    def start(self, run: EventRun, work: Any) -> None:
        """Start the coroutine that makes an answer. Raises a 503 while too many run.

        No other answer of the owner with its id may be running.
        """
        running = [each for each in self._runs.values() if each.is_running]
        reason = ""
        if sum(each.owner == run.owner for each in running) >= MAX_OWNER_RUNS:
            reason = f"{MAX_OWNER_RUNS} background responses of yours are running"
        elif len(running) >= MAX_RUNS:
            reason = f"{MAX_RUNS} background responses are running"
        if reason:
            work.close()
            raise overloaded(reason)
        earlier = self.get(run.owner, run.id)
        if earlier is not None:
            self.forget(earlier)
        self._runs[run.owner, run.id] = run
        self._count(run.owner, run.num_bytes)
        run.task = asyncio.ensure_future(work)
        run.task.add_done_callback(partial(self._ended, run))

    def start_stream(self, run: EventRun, events: AsyncGenerator[bytes]) -> None:
        """Start an answer of which `events` are the stream. Raises a 503 while too many run."""

        async def work() -> None:
            async with aclosing(events):
                async for data in events:
                    self.append(run, data)

        self.start(run, work())
        run.await_reader()

    def append(self, run: EventRun, data: bytes) -> None:
        """Add events to an answer, and hold its owner to the limit of bytes.

        Events of ended answers are dropped first, then the first ones of this answer.
        """
        self._count(run.owner, run.append(data))
        if self._excess(run.owner) <= 0:
            return
        for each in list(self._runs.values()):
            if self._excess(run.owner) <= 0:
                return
            if each.owner == run.owner and not each.is_running:
                self.forget(each)
        self._count(run.owner, -run.drop_first(self._excess(run.owner)))

    def _excess(self, owner: str) -> int:
        return self._bytes.get(owner, 0) - MAX_OWNER_BYTES

    def _count(self, owner: str, size: int) -> None:
        self._bytes[owner] = self._bytes.get(owner, 0) + size
        if not self._bytes[owner]:
            del self._bytes[owner]

    def _ended(self, run: EventRun, task: asyncio.Task[None]) -> None:
        run.on_end()
        if task.cancelled():  # without a reader, or with the server
            self.forget(run)
        run.end(None if task.cancelled() else task.exception())

    def _forget_old(self) -> None:
        before_s = self._clock() - HELD_S
        for run in list(self._runs.values()):
            if run.ended_s is not None and run.ended_s < before_s:
                self.forget(run)


def overloaded(reason: str) -> HTTPException:
    """Return a 503 that can be tried again."""
    detail = {"message": f"{reason}; try again later.", "code": "overloaded"}
    return HTTPException(503, detail, {"Retry-After": "1"})


def event_number(text: str, field: str) -> int:
    """Return the number of the last event that a client has; -1: none.

    Raises `InvalidRequest`.
    """
    if not text.removeprefix("-").isdecimal() or len(text) > 12 or not -1 <= int(text) <= 2**31:
        raise InvalidRequest(field, f"must be an integer from -1 to {2**31}, not {text[:32]!r}.")
    return int(text)
