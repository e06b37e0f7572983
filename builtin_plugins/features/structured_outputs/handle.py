"""A keeper as it is seen from where its masks are used, and the outputs that it has in hand."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.features.structured_outputs.messages import (
    Advance,
    Checked,
    Close,
    Closed,
    FromKeeper,
    Here,
    Made,
    Make,
    Masked,
    Open,
    Points,
    Refused,
)
from builtin_plugins.features.structured_outputs.wire import Wire
from core.api import EngineError, InvalidRequest, RequestFailed

if TYPE_CHECKING:
    import socket

    from builtin_plugins.features.structured_outputs.rows import Mask
    from core.api import Constraint

Key = tuple[tuple[str, ...], "Constraint"]
"""Backends to ask and the constraint: outputs of equal keys share a keeper."""
LOWEST_PRIORITY: Final = 19


class OverBudget(InvalidRequest):
    """A constraint that takes more than it may."""

    def __init__(self, field: str, message: str, budget: str) -> None:
        super().__init__(field, message)
        self.budget = budget
        """The setting that says how much."""


class Stage(IntEnum):
    """How far a keeper is."""

    QUEUED = 0
    COMPILING = 1
    READY = 2
    GONE = 3


class Line:
    """One output under a constraint: its mask, or why there is none."""

    __slots__ = (
        "announces", "error", "handle", "is_late", "is_pending", "is_slow", "length", "more", "num_quick", "number", "owner", "spent_s",
        "work_s",
    )  # fmt: skip

    def __init__(self, handle: Handle, number: int, length: int, owner: Any) -> None:
        self.handle = handle
        self.number = number
        self.length = length
        """Tokens of the request that it has taken in, its prompt among them."""
        self.owner = owner
        self.is_pending = True
        """Its mask is being made."""
        self.announces = True
        """Somebody waits elsewhere for its mask."""
        self.is_slow = False
        self.num_quick = 0
        """Masks in a row that came in time."""
        self.is_late = False
        """A step went without its mask; until it is asked for anew, it has none."""
        self.error: EngineError | None = None
        self.work_s = 0.0
        """CPU time of its last mask."""
        self.spent_s = 0.0
        """CPU time of all masks of the output, those before a preemption included."""
        self.more: list[bytes] = []
        """The masks behind guesses."""

    @property
    def mask(self) -> Mask:
        """Which tokens may come next."""
        mask: Mask = self.handle.board[self.number]
        return mask


class Handle:
    """One keeper from its request to its end. Not safe for several threads: `Keepers` has the lock."""

    def __init__(self, key: Key, heard: Callable[[Line], None]) -> None:
        self.key = key
        self.stage = Stage.QUEUED
        self.lines: dict[int, Line] = {}
        self.checked: Future[str] = Future()
        """The backend that serves the constraint, or the refusal."""
        self.since_s = time.monotonic()
        """When it was asked for."""
        self.memory_bytes = 0
        self.is_humble = False
        """It works with what others leave."""
        self.board: Mask
        self._heard = heard
        self._wire: Wire[FromKeeper] | None = None
        self._early: list[Any] = []
        self._next = 0
        self._free = list[int]()
        self._pid = 0
        self._pidfd = -1
        self._clock = 0
        self._used_s = 0.0
        """CPU time of the keeper when it last said something."""
        self._base_bytes = 0
        self.compile_s = 0.0
        """CPU time of the compilation, until somebody has been told."""
        self.num_asking = 0
        """Callers who wait for `checked`."""
        self._num_owed = 0
        """Masks that were asked for and have not come."""

    @property
    def kind(self) -> str:
        """The request's field."""
        return f"structured_outputs.{self.key[1].kind}"

    def fileno(self) -> int:
        """Return what is polled for news."""
        return -1 if self._wire is None else self._wire.fileno()

    # --- outputs

    def open(self, length: int, owner: Any) -> Line:
        """Return a line that knows so many tokens; `begin` says which."""
        if self._free:
            number = self._free.pop()
        else:
            number = self._next
            self._next = self._next + 1
        line = self.lines[number] = Line(self, number, length, owner)
        return line

    def begin(
        self, line: Line, prompt_end: list[int], output: list[int], stops: list[int], *, skips: bool
    ) -> None:
        """Have the first mask made."""
        self.send([Open(line.number, prompt_end, output, stops, skips)])

    def send(self, messages: Sequence[Open | Advance | Points | Close]) -> None:
        """Send messages, as soon as there is somebody to read them."""
        if self._wire is None or self.stage is not Stage.READY:
            self._early += messages
        else:
            self._num_owed += sum(not isinstance(message, Close) for message in messages)
            self._wire.send([*messages])

    def drop(self, line: Line) -> None:
        """Forget a line."""
        if self.lines.pop(line.number, None) is not None and self.stage is Stage.READY:
            self.send([Close(line.number)])

    @property
    def is_waited_for(self) -> bool:
        """Say whether it has something to do."""
        return self.stage < Stage.READY or (self.stage is Stage.READY and self._num_owed > 0)

    # --- the keeper

    def meet(self, sock: socket.socket, board: Mask) -> None:
        """Take the socket of a keeper that was just born."""
        self.stage = Stage.COMPILING
        self.board = board
        self._wire = Wire(sock, FromKeeper)
        self._used_s = 0.0
        self._base_bytes = 0

    def pump(self) -> None:
        """Take what has come, without waiting."""
        wire = self._wire
        while (
            wire is not None and self.stage is not Stage.GONE and (said := wire.receive(wait=False))
        ):
            for message in said:
                self._take(message)
        if wire is None or self.stage is Stage.GONE:
            return
        wire.flush()
        if wire.is_closed:
            self.end(self._obituary())

    def _take(self, message: FromKeeper) -> None:
        if isinstance(message, Masked):
            self._used_s = message.used_s
            self._num_owed -= 1
            line = self.lines.get(message.line)
            if line is None:
                return
            line.is_pending = False
            line.work_s = message.work_s
            line.more = message.more
            line.spent_s += message.work_s
            if message.error:
                line.error = RequestFailed(message.error)
            self._heard(line)
        elif isinstance(message, Closed):
            self._free.append(message.line)
        elif isinstance(message, Here):
            self._know(message.pid)
            if self._wire is not None:
                self._wire.send([Make(self.key[1], [*self.key[0]])])
        elif isinstance(message, Checked):
            if not self.checked.done():
                self.checked.set_result(message.backend)
        elif isinstance(message, Refused):
            said = message.message
            self.end(InvalidRequest(message.field, said) if message.field else RequestFailed(said))
        elif isinstance(message, Made):
            self.stage = Stage.READY
            self._used_s = message.used_s
            self.compile_s = message.used_s
            self.memory_bytes = self._own_bytes()
            self.be_equal()
            early = [m for m in self._early if not isinstance(m, Close)]
            self._early = []
            self.send([m for m in early if m.line in self.lines])

    def end(self, error: EngineError) -> None:
        """End the keeper, with what all who wait for it are told; safe to call twice."""
        if self.stage is Stage.GONE:
            return
        self._kill()
        self.stage = Stage.GONE
        if not self.checked.done():
            self.checked.set_exception(error)
        lines = self.lines
        self.lines = {}
        for line in lines.values():
            line.is_pending = False
            line.error = line.error or error
            self._heard(line)

    def restart_later(self) -> None:
        """End the keeper, to be made again from the beginning."""
        self._kill()
        self.stage = Stage.QUEUED
        self._wire = None

    def _kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._wire is not None:
            self._wire.close()

    # --- what it costs

    def _know(self, pid: int) -> None:
        if pid:
            self._pid = pid
            self._pidfd = os.pidfd_open(pid)
            self._clock = ~pid << 3 | 2  # as clock_getcpuclockid makes it
            self._base_bytes = self._anonymous_bytes()

    def used_s(self) -> float:
        """Return the CPU time that it has spent since it last said something: on the mask, or the
        compilation, under way.
        """
        if self._pidfd < 0:
            return 0.0
        try:
            return time.clock_gettime(self._clock) - self._used_s
        except OSError:
            return 0.0

    def taken_bytes(self) -> int:
        """Return by how much it has grown."""
        return max(0, self._anonymous_bytes() - self._base_bytes) if self._pidfd >= 0 else 0

    def be_humble(self) -> None:
        """Let it work with what others leave."""
        if self._pidfd >= 0 and not self.is_humble:
            self.is_humble = self._set_priority(LOWEST_PRIORITY)

    def be_equal(self) -> None:
        """Let it work as others do again, where the system lets us."""
        if self._pidfd >= 0 and self.is_humble:
            self.is_humble = not self._set_priority(os.getpriority(os.PRIO_PROCESS, 0))

    def _set_priority(self, nice: int) -> bool:
        try:
            os.setpriority(os.PRIO_PROCESS, self._pid, nice)
        except OSError:  # only who is privileged may go back
            return False
        return True

    def _anonymous_bytes(self) -> int:
        return _kilobytes(Path(f"/proc/{self._pid}/status"), "RssAnon:")

    def _own_bytes(self) -> int:
        """Return the memory that it shares with nobody."""
        return (
            _kilobytes(Path(f"/proc/{self._pid}/smaps_rollup"), "Private_Dirty:")
            if self._pidfd >= 0
            else 0
        )

    def _obituary(self) -> EngineError:
        return RequestFailed(
            f"{self.kind}: the process that kept its grammar has ended; send the request again."
        )


def _kilobytes(file: Path, name: str) -> int:
    """Return a figure of a process in bytes; 0 where it has ended."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)
