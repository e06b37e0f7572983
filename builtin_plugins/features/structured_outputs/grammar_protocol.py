"""Messages between a worker and its grammar processes, and the socket that carries them."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from typing import Any, Final, Generic, TypeVar

import msgspec

from builtin_plugins.grammar_backends.api import Constraint
from builtin_plugins.output_parsers.api import ReasoningBounds

T = TypeVar("T")
_CHUNK: Final = 1 << 15
"""Payload bytes of a packet; a socket's buffer holds several."""
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_MORE: Final = b"\0"
_LAST: Final = b"\1"


class CompileGrammar(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """First message to a grammar process: the constraint to compile."""

    constraint: Constraint
    backends: list[str]
    """Backends to try, best first."""


class OpenOutput(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Start or resume an output: make its first mask."""

    line: int
    """Number of the output and of its mask in the shared buffer."""
    prompt_end: list[int]
    """Last tokens of the prompt, where reasoning may end."""
    output: list[int]
    """Tokens generated so far, before a preemption or a restart."""
    stops: list[int]
    """Stop tokens."""
    skip_reasoning: bool
    reasoning: ReasoningBounds | None = None
    """Where reasoning lies; None: as the server's parser finds it in the prompt."""


class AdvanceOutput(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Append sampled tokens to an output: make its next mask."""

    line: int
    tokens: list[int]


class PointMasks(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Make the masks of all sampling points of an output with draft tokens."""

    line: int
    back: int
    """Number of tokens of the last step to roll back, as they were rejected."""
    tokens: list[int]
    """Accepted tokens that the grammar has not seen."""
    draft_tokens: list[int]


class CloseOutput(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """End an output; its number may be reused after `OutputClosed`."""

    line: int


ToGrammar = CompileGrammar | OpenOutput | AdvanceOutput | PointMasks | CloseOutput


class ProcessStarted(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The grammar process runs."""

    pid: int


class ConstraintAccepted(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A backend supports the constraint and compiles it now."""

    backend: str


class GrammarCompiled(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The grammar is compiled."""

    used_s: float
    """CPU time of the process so far."""


class ConstraintRejected(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The constraint cannot be served. The process ends."""

    field: str
    """Request field at fault; empty if the fault is not the client's."""
    message: str


class MaskFilled(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An output's mask is in the shared buffer."""

    line: int
    work_s: float
    """CPU time of the mask."""
    used_s: float
    """CPU time of the process so far."""
    more: list[bytes]
    """Masks after each draft token."""
    error: str = ""
    """Failure message; empty on success."""
    optional: list[int] = []
    """Tokens that start reasoning, for a model that prefers them to all others."""
    is_refusal: bool = False
    """The error is the constraint's own."""


class OutputClosed(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An output is removed from the process."""

    line: int


FromGrammar = (
    ProcessStarted
    | ConstraintAccepted
    | GrammarCompiled
    | ConstraintRejected
    | MaskFilled
    | OutputClosed
)


class Wire(Generic[T]):
    """One end of a local socket pair that carries packets of messages. Sending never blocks."""

    def __init__(self, sock: socket.socket, kinds: Any) -> None:
        self.sock = sock
        self.is_closed = False
        """Either end is closed."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[kinds]).decode
        self._unsent: deque[bytes] = deque()
        """Packets beyond the socket's buffer, until `flush`."""
        self._parts: list[bytes] = []

    def fileno(self) -> int:
        """Return the socket's file descriptor, for polling."""
        return self.sock.fileno()

    def send(self, messages: list[Any]) -> None:
        """Send messages together; a closed wire drops them."""
        data = self._encode(messages)
        for at in range(0, len(data), _CHUNK):
            is_last = at + _CHUNK >= len(data)
            self._unsent.append((_LAST if is_last else _MORE) + data[at : at + _CHUNK])
        self.flush()

    def flush(self) -> bool:
        """Send as much as the socket accepts; return whether that was everything."""
        while self._unsent and not self.is_closed:
            try:
                self.sock.send(self._unsent[0], socket.MSG_DONTWAIT | _NO_SIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self.is_closed = True
            else:
                self._unsent.popleft()
        return True

    def drain(self) -> None:
        """Send everything, blocking as long as needed."""
        while not self.flush():
            select.select((), (self.sock,), ())

    def receive(self, *, wait: bool) -> list[T]:
        """Return the messages of the next packet; an empty list if there is none."""
        while not self.is_closed:
            try:
                data = self.sock.recv(_CHUNK + 1, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
                return []
            self._parts.append(data[1:])
            if data[:1] == _LAST:
                whole = b"".join(self._parts)
                self._parts = []
                messages: list[T] = self._decode(whole)
                return messages
        return []

    def close(self) -> None:
        """Close this end; safe to call twice."""
        with contextlib.suppress(OSError):  # an empty packet marks the end on datagram sockets
            self.sock.send(b"", socket.MSG_DONTWAIT | _NO_SIGNAL)
        self.is_closed = True
        self.sock.close()
