"""Where keepers come from: processes forked from a zygote, or threads where processes cannot be
forked.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import socket
import sys
import threading
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from builtin_plugins.features.structured_outputs.keeper import Keeper, board_bytes, board_of, keep
from builtin_plugins.features.structured_outputs.messages import ToKeeper
from builtin_plugins.features.structured_outputs.tools import Tools
from builtin_plugins.features.structured_outputs.wire import Wire
from builtin_plugins.features.structured_outputs.zygote import WARM, Meet
from core.process.messages import Connected, Failed, Start

if TYPE_CHECKING:
    from builtin_plugins.features.structured_outputs.rows import Mask
    from core.api import EngineConfig
    from core.process.spawn import Child


def nursery_of(config: EngineConfig, registry: Any) -> Nursery:
    """Return one that forks where that can be done: on Linux, with what processes of the engine
    talk through.
    """
    if sys.platform == "linux" and find_spec("zmq") is not None:
        return Zygote(config, registry)
    return Threads(Tools(config, registry))


class Nursery(Protocol):
    """Brings keepers forth."""

    def is_ready(self) -> bool:
        """Say whether it can; not waiting for anything. Raises what it never can for."""

    def bear(self) -> tuple[socket.socket, Mask]:
        """Return the socket of a new keeper, and the masks it will write."""

    def close(self) -> None:
        """End it and all its keepers; safe to call twice."""


class Zygote:
    """Starts the process; what it forks ends with it."""

    def __init__(self, config: EngineConfig, registry: Any) -> None:
        from core.process.spawn import Child, thread_environment  # lazy: optional extra

        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"engine-grammars-{secrets.token_hex(16)}"
        self._listener.bind(f"\0{name}")  # a name that is no file: nothing of it is left behind
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._control: socket.socket | None = None
        self._num_words = 0
        start = Start(
            target="builtin_plugins.features.structured_outputs.zygote:run",
            process="grammars",
            plan=registry.plan,
            config=config,
            sys_path=[os.path.abspath(folder) for folder in sys.path],
            log_level=logging.getLevelName(logging.getLogger("core").getEffectiveLevel()).lower(),
        )
        # Not a leader: who kills the engine's group must reach it and its keepers, too.
        self._child = Child(
            start, Connected | Failed, leader=False, environment=thread_environment(1)
        )
        # An engine that nobody closes takes it along.
        self._sockets = [self._listener]
        self._end = weakref.finalize(self, _end, self._child, self._sockets)
        self._child.channel.send(Meet(name))

    def is_ready(self) -> bool:
        """Say whether it has read the vocabulary. Raises what it could not start for."""
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
        """Return the socket of our child; anybody else who has found the name is sent away."""
        control, _ = self._listener.accept()
        peer = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[:4], sys.byteorder) == self._child.pid:
            self._listener.close()
            return control
        control.close()
        return None

    def bear(self) -> tuple[socket.socket, Mask]:
        """Have a keeper forked. Raises `OSError` where the zygote has gone."""
        if self._control is None:
            raise BrokenPipeError("the zygote has not come up")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = os.memfd_create("masks")
        try:
            os.truncate(memory, board_bytes(self._num_words))
            board = board_of(mmap.mmap(memory, board_bytes(self._num_words)), self._num_words)
            socket.send_fds(self._control, [b"\0"], [theirs.fileno(), memory])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
        return ours, board

    def close(self) -> None:
        """Kill it; the system kills its keepers."""
        self._end()


def _end(child: Child, sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
    child.close()


class Threads:
    """Keepers that are threads of this process: nothing can end one that works too long."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def is_ready(self) -> bool:
        """Nothing is to be started; the first keeper reads what it needs."""
        return True

    def bear(self) -> tuple[socket.socket, Mask]:
        """Start a thread."""
        num_words = len(self._tools.masks.ends)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        board = board_of(mmap.mmap(-1, board_bytes(num_words)), num_words)
        wire: Wire[ToKeeper] = Wire(theirs, ToKeeper)

        def run() -> None:
            keep(wire, Keeper(self._tools, board), 0)
            wire.close()

        threading.Thread(target=run, name="grammar-keeper", daemon=True).start()
        return ours, board

    def close(self) -> None:
        """A thread ends when its socket is closed."""
