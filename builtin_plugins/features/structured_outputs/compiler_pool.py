"""Starts grammar processes: forked by a fork server, or threads where forking is not possible."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import socket
import subprocess
import sys
import threading
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol

from builtin_plugins.executors.api import Connected, Failed, Start
from builtin_plugins.features.structured_outputs.fork_server import WARM, Handshake
from builtin_plugins.features.structured_outputs.grammar_process import (
    GrammarProcess,
    mask_buffer,
    mask_buffer_bytes,
    serve_grammar,
)
from builtin_plugins.features.structured_outputs.grammar_protocol import ToGrammar, Wire
from builtin_plugins.features.structured_outputs.resources import GrammarResources

if TYPE_CHECKING:
    from builtin_plugins.executors.api import Child
    from builtin_plugins.features.structured_outputs.grammar_row import Mask
    from core.api import EngineConfig, Registry


_END_S: Final = 1.0


def make_compiler_pool(config: EngineConfig, registry: Registry) -> CompilerPool:
    """Return a fork server on Linux with ZeroMQ installed, threads elsewhere."""
    if sys.platform == "linux" and find_spec("zmq") is not None:
        return ForkServer(config, registry)
    return ThreadPool(GrammarResources(config, registry))


class CompilerPool(Protocol):
    """Starts grammar processes."""

    def is_ready(self) -> bool:
        """Return whether it can start one, without blocking. Raises its start-up failure."""

    def spawn(self) -> tuple[socket.socket, Mask]:
        """Return the socket and the mask buffer of a new grammar process."""

    def was_killed(self) -> bool:
        """Return whether it has ended, killed from outside."""

    def close(self) -> None:
        """End it and all its grammar processes; safe to call twice."""


class ForkServer:
    """Starts and owns the fork server process; its forks end with it."""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        from builtin_plugins.executors.api import Child, thread_environment  # lazy: optional extra

        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"engine-grammars-{secrets.token_hex(16)}"
        self._listener.bind(f"\0{name}")  # an abstract name, so no file is left over
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._control: socket.socket | None = None
        self._num_words = 0
        start = Start(
            target="builtin_plugins.features.structured_outputs.fork_server:run",
            process="grammars",
            plan=registry.plan,
            config=config,
            sys_path=[os.path.abspath(folder) for folder in sys.path],
            log_level=logging.getLevelName(logging.getLogger("core").getEffectiveLevel()).lower(),
        )
        # Not a group leader: a kill of the engine's process group must reach it and its forks.
        self._child = Child(
            start, Connected | Failed, leader=False, environment=thread_environment(1)
        )
        # The process also ends with an engine that is not closed.
        self._sockets = [self._listener]
        self._end = weakref.finalize(self, _end, self._child, self._sockets)
        self._child.channel.send(Handshake(name))

    def is_ready(self) -> bool:
        """Return whether it has read the vocabulary. Raises its start-up failure."""
        if self._num_words:
            return True
        self._child.receive(0)
        try:
            if self._control is None:
                self._control = self._accepted()
                self._sockets += [self._control] if self._control is not None else []
            elif data := self._control.recv(WARM.size, socket.MSG_DONTWAIT):
                (self._num_words,) = WARM.unpack(data)
        except (BlockingIOError, ConnectionError):
            pass
        return self._num_words > 0

    def _accepted(self) -> socket.socket | None:
        """Return the socket of our child; connections of other processes are closed."""
        control, _ = self._listener.accept()
        peer = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[:4], sys.byteorder) == self._child.pid:
            self._listener.close()
            return control
        control.close()
        return None

    def spawn(self) -> tuple[socket.socket, Mask]:
        """Fork a grammar process. Raises `OSError` if the fork server has exited."""
        if self._control is None:
            raise BrokenPipeError("the fork server has not started")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = os.memfd_create("masks")
        try:
            size = mask_buffer_bytes(self._num_words)
            os.truncate(memory, size)
            buffer = mask_buffer(mmap.mmap(memory, size), self._num_words)
            socket.send_fds(self._control, [b"\0"], [theirs.fileno(), memory])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
        return ours, buffer

    def was_killed(self) -> bool:
        """Return whether SIGKILL has ended it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.process.wait(_END_S)  # its sockets close just before its end
        return self._child.was_killed

    def close(self) -> None:
        """Kill it; the system kills its forks."""
        self._end()


def _end(child: Child, sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
    child.close()


class ThreadPool:
    """Runs grammar processes as threads of this process, which cannot be killed."""

    def __init__(self, resources: GrammarResources) -> None:
        self._resources = resources

    def is_ready(self) -> bool:
        """Return True: the first thread reads what it needs."""
        return True

    def spawn(self) -> tuple[socket.socket, Mask]:
        """Start a thread."""
        num_words = len(self._resources.masks.ends)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        buffer = mask_buffer(mmap.mmap(-1, mask_buffer_bytes(num_words)), num_words)
        wire: Wire[ToGrammar] = Wire(theirs, ToGrammar)

        def run() -> None:
            serve_grammar(wire, GrammarProcess(self._resources, buffer), 0)
            wire.close()

        threading.Thread(target=run, name="grammar", daemon=True).start()
        return ours, buffer

    def was_killed(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing: a thread ends when its socket is closed."""
