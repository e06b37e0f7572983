"""A worker's view of a grammar process, and the outputs that use it."""

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

from builtin_plugins.features.structured_outputs.grammar_protocol import (
    AdvanceOutput,
    CloseOutput,
    CompileGrammar,
    ConstraintAccepted,
    ConstraintRejected,
    FromGrammar,
    GrammarCompiled,
    MaskFilled,
    OpenOutput,
    OutputClosed,
    PointMasks,
    ProcessStarted,
    Wire,
)
from core.api import EngineError, InvalidRequest, RequestFailed

if TYPE_CHECKING:
    import socket

    from builtin_plugins.features.structured_outputs.grammar_row import Mask
    from builtin_plugins.features.structured_outputs.messages import PrepareMask
    from builtin_plugins.grammar_backends.api import Constraint

Key = tuple[tuple[str, ...], "Constraint"]
"""Backends to try, and the constraint: outputs with equal keys share a grammar process."""
LOWEST_PRIORITY: Final = 19


class BudgetExceeded(InvalidRequest):
    """A constraint exceeds its CPU or memory budget."""

    def __init__(self, field: str, message: str, budget: str) -> None:
        super().__init__(field, message)
        self.budget = budget
        """Setting that holds the budget."""


class GrammarLost(RequestFailed):
    """A grammar process died of no fault of a request that is known; another one may be tried."""

    def __init__(self, message: str, pid: int = 0, *, is_killed: bool = False) -> None:
        super().__init__(message)
        self.pid = pid
        """The process; 0 if it had not started."""
        self.is_killed = is_killed
        """It is known that the process was killed from outside."""


class ProcessState(IntEnum):
    """State of a grammar process."""

    QUEUED = 0
    COMPILING = 1
    READY = 2
    GONE = 3


class ConstrainedOutput:
    """One output under a constraint: its mask, or the error that replaces it."""

    __slots__ = (
        "announces",
        "error",
        "handle",
        "is_late",
        "is_pending",
        "is_slow",
        "length",
        "more",
        "num_in_time",
        "number",
        "optional",
        "owner",
        "spent_s",
        "work_s",
    )

    def __init__(self, handle: GrammarHandle, number: int, length: int, owner: Any) -> None:
        self.handle = handle
        self.number = number
        self.length = length
        """Number of the request's tokens that the grammar has seen, prompt included."""
        self.owner = owner
        self.is_pending = True
        """Its mask is being made."""
        self.announces = True
        """The scheduler waits for a message about its mask."""
        self.is_slow = False
        self.num_in_time = 0
        """Number of consecutive masks that were in time."""
        self.is_late = False
        """A step ran without its mask; it stays without one until prepared again."""
        self.error: EngineError | None = None
        self.work_s = 0.0
        """CPU time of its last mask."""
        self.spent_s = 0.0
        """CPU time of all masks of the output, including those before a preemption."""
        self.more: list[bytes] = []
        """Masks after each draft token."""
        self.optional: list[int] = []
        """Tokens of the mask that start reasoning, for a model that prefers them to all others."""

    @property
    def mask(self) -> Mask:
        """Tokens that are allowed next."""
        mask: Mask = self.handle.buffer[self.number]
        return mask


class GrammarHandle:
    """One grammar process from request to end. Callers hold the lock of `GrammarProcessPool`."""

    def __init__(self, key: Key, on_change: Callable[[ConstrainedOutput], None]) -> None:
        self.key = key
        self.state = ProcessState.QUEUED
        self.outputs: dict[int, ConstrainedOutput] = {}
        self.checked: Future[str] = Future()
        """Name of the backend that accepts the constraint, or the rejection."""
        self.since_s = time.monotonic()
        """Time of the first request for it."""
        self.memory_bytes = 0
        self.has_low_priority = False
        """The process runs at the lowest CPU priority."""
        self.buffer: Mask
        self._on_change = on_change
        self._wire: Wire[FromGrammar] | None = None
        self._queued: list[Any] = []
        """Messages to send once the grammar is compiled."""
        self._next = 0
        self._free: list[int] = []
        self.pid = 0
        self._pidfd = -1
        self.is_thread = False
        """It runs as a thread, so its CPU time is unknown."""
        self._clock = 0
        self._used_s = 0.0
        """CPU time of the process at its last message."""
        self._base_bytes = 0
        self.compile_s = 0.0
        """CPU time of the compilation, until it is reported."""
        self.num_checking = 0
        """Number of callers that wait for `checked`."""
        self._num_pending = 0
        """Number of requested masks that have not arrived."""

    @property
    def kind(self) -> str:
        """The request's field."""
        return f"structured_outputs.{self.key[1].kind}"

    def fileno(self) -> int:
        """Return the file descriptor to poll for messages; -1 if there is none."""
        return -1 if self._wire is None else self._wire.fileno()

    # --- outputs

    def open(self, length: int, owner: Any) -> ConstrainedOutput:
        """Return a new output of `length` tokens; `begin` sends them."""
        if self._free:
            number = self._free.pop()
        else:
            number = self._next
            self._next += 1
        output = ConstrainedOutput(self, number, length, owner)
        self.outputs[number] = output
        return output

    def begin(self, output: ConstrainedOutput, request: PrepareMask) -> None:
        """Request the first mask."""
        message = OpenOutput(
            output.number,
            request.prompt_end,
            request.output,
            request.stops,
            request.params.skip_reasoning,
            request.reasoning,
        )
        self.send([message])

    def send(
        self, messages: Sequence[OpenOutput | AdvanceOutput | PointMasks | CloseOutput]
    ) -> None:
        """Send messages, or queue them until the grammar is compiled."""
        if self._wire is None or self.state is not ProcessState.READY:
            self._queued += messages
        else:
            self._num_pending += sum(not isinstance(message, CloseOutput) for message in messages)
            self._wire.send([*messages])

    def drop(self, output: ConstrainedOutput) -> None:
        """Remove an output."""
        if self.outputs.pop(output.number, None) is None:
            return
        if self.state is ProcessState.READY:
            self.send([CloseOutput(output.number)])

    @property
    def is_busy(self) -> bool:
        """True while a compilation or a mask is pending."""
        if self.state is ProcessState.READY:
            return self._num_pending > 0
        return self.state < ProcessState.READY

    # --- the process

    def attach_socket(self, sock: socket.socket, buffer: Mask) -> None:
        """Connect to a process that was just started."""
        self.state = ProcessState.COMPILING
        self.buffer = buffer
        self._wire = Wire(sock, FromGrammar)
        self._used_s = 0.0
        self._base_bytes = 0

    def pump(self) -> None:
        """Process the messages that have arrived, without blocking."""
        wire = self._wire
        while wire is not None and self.state is not ProcessState.GONE:
            messages = wire.receive(wait=False)
            if not messages:
                break
            for message in messages:
                self._on_message(message)
        if wire is None or self.state is ProcessState.GONE:
            return
        wire.flush()
        if wire.is_closed:
            self.end(self.lost("has exited"))

    def _on_message(self, message: FromGrammar) -> None:
        if isinstance(message, MaskFilled):
            self._on_mask(message)
        elif isinstance(message, OutputClosed):
            self._free.append(message.line)
        elif isinstance(message, ProcessStarted):
            self._open_process(message.pid)
            if self._wire is not None and self.state is not ProcessState.GONE:
                self._wire.send([CompileGrammar(self.key[1], [*self.key[0]])])
        elif isinstance(message, ConstraintAccepted):
            if not self.checked.done():
                self.checked.set_result(message.backend)
        elif isinstance(message, ConstraintRejected):
            text = message.message
            self.end(InvalidRequest(message.field, text) if message.field else RequestFailed(text))
        elif isinstance(message, GrammarCompiled):
            self.state = ProcessState.READY
            self._used_s = message.used_s
            self.compile_s = message.used_s
            self.memory_bytes = self._own_bytes()
            self.restore_priority()
            queued = [each for each in self._queued if not isinstance(each, CloseOutput)]
            self._queued = []
            self.send([each for each in queued if each.line in self.outputs])

    def _on_mask(self, message: MaskFilled) -> None:
        self._used_s = message.used_s
        self._num_pending -= 1
        output = self.outputs.get(message.line)
        if output is None:
            return
        output.is_pending = False
        output.work_s = message.work_s
        output.more = message.more
        output.optional = message.optional
        output.spent_s += message.work_s
        if message.error:
            refused = InvalidRequest(self.kind, message.error)
            output.error = refused if message.is_refusal else RequestFailed(message.error)
        self._on_change(output)

    def end(self, error: EngineError) -> None:
        """End the process and fail everything that waits for it; safe to call twice."""
        if self.state is ProcessState.GONE:
            return
        self._kill()
        self.state = ProcessState.GONE
        if not self.checked.done():
            self.checked.set_exception(error)
        outputs = self.outputs
        self.outputs = {}
        for output in outputs.values():
            output.is_pending = False
            output.error = output.error or error
            self._on_change(output)

    def restart_later(self) -> None:
        """End the process, to be started again from the beginning."""
        self._kill()
        self.state = ProcessState.QUEUED
        self._wire = None

    def _kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._wire is not None:
            self._wire.close()

    # --- resource usage

    def _open_process(self, pid: int) -> None:
        self.is_thread = not pid
        if pid:
            self.pid = pid
            try:
                self._pidfd = os.pidfd_open(pid)
            except OSError:  # it has exited, or too many files are open
                self.end(self.lost("has exited"))
                return
            self._clock = ~pid << 3 | 2  # as clock_getcpuclockid computes it
            self._base_bytes = self._anonymous_bytes()

    def used_s(self) -> float:
        """Return the CPU time since its last message: of the current mask or compilation."""
        if self._pidfd < 0:
            return 0.0
        try:
            return time.clock_gettime(self._clock) - self._used_s
        except OSError:
            return 0.0

    def grown_bytes(self) -> int:
        """Return the growth of its memory since it started."""
        return max(0, self._anonymous_bytes() - self._base_bytes) if self._pidfd >= 0 else 0

    def lower_priority(self) -> None:
        """Set the lowest CPU priority."""
        if self._pidfd >= 0 and not self.has_low_priority:
            self.has_low_priority = self._set_priority(LOWEST_PRIORITY)

    def restore_priority(self) -> None:
        """Set the worker's own CPU priority, if the system permits it."""
        if self._pidfd >= 0 and self.has_low_priority:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            self.has_low_priority = not self._set_priority(own)

    def _set_priority(self, nice: int) -> bool:
        try:
            os.setpriority(os.PRIO_PROCESS, self.pid, nice)
        except OSError:  # raising the priority needs a privilege
            return False
        return True

    def _anonymous_bytes(self) -> int:
        return _kilobytes(Path(f"/proc/{self.pid}/status"), "RssAnon:")

    def _own_bytes(self) -> int:
        """Return the memory that the process does not share."""
        if self._pidfd < 0:
            return 0
        return _kilobytes(Path(f"/proc/{self.pid}/smaps_rollup"), "Private_Dirty:")

    def lost(self, what: str) -> GrammarLost:
        """Return the error for a process that has died or must be replaced."""
        text = f"{self.kind}: its grammar process {what}; send the request again."
        return GrammarLost(text, self.pid)


def _kilobytes(file: Path, name: str) -> int:
    """Return a figure of a process in bytes; 0 if it has exited."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)
