"""Several API servers on one port (`--api-server-count`): starts them and restarts those that die.

This process has the broker, and with it the engines. It holds the listening socket, which every
API server inherits: a connection is accepted by one that is free, and none is lost when one dies.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any, Final

from builtin_plugins.clients.api import EngineBroker, messages
from builtin_plugins.commands.serve.shared_state import num_api_servers, shared_options
from builtin_plugins.commands.serve.system import limit_allocations, resident_bytes
from builtin_plugins.commands.sizes import show_bytes
from builtin_plugins.executors.api import TICK_S, Child, Start
from core.api import ConfigError, EngineConfig, EngineDead, EngineError
from core.api.plugins import LoadedRegistry

log = logging.getLogger(__name__)

CHECK_S: Final = 0.5
"""Interval of memory checks, in seconds."""
STEADY_S: Final = 10.0
"""Uptime in seconds after which the crash counter resets."""
LONGEST_PAUSE_S: Final = 5.0
"""Maximum pause in seconds between two starts of a crashing API server."""


class ApiServers:
    """The API servers, and the broker between them and the engines."""

    def __init__(
        self, config: EngineConfig, registry: LoadedRegistry, parent: Any, memory_limit: int
    ) -> None:
        self._config = config
        self._registry = registry
        self._parent = parent
        self._memory_limit = memory_limit
        self._count = num_api_servers(config)
        self._num_signals = 0
        self._servers: list[ApiServer] = []

    def run(self) -> int:
        """Serve until a signal, or the engines' death; return the exit status."""
        descriptors = self._open()
        with tempfile.TemporaryDirectory(prefix=f"engine-{os.getpid()}-") as folder:
            options = shared_options(self._config, Path(folder))
            self._broker = EngineBroker(self._config, self._registry)
            try:
                for index in range(self._count):
                    self._servers.append(ApiServer(self, index, descriptors, options))
                self._broker.wait()
                return self._follow()
            finally:
                for server in self._servers:
                    server.kill()
                self._broker.stop()

    def _open(self) -> Mapping[str, Sequence[int]]:
        """Return the descriptors that API servers inherit, by name.

        Raises `ConfigError` for a server that has none to share.
        """
        server = self._registry.choose("servers")
        make = self._registry.load(server)
        if not hasattr(make, "open_listeners"):
            raise ConfigError(
                f"--api-server-count: got {self._count}; expected 1 with {server}, which cannot "
                "share its port. Remove it."
            )
        with self._registry.blame(server):
            if self._parent is None or not self._parent.restarts:
                make.check(self._config)
            opened: Mapping[str, Sequence[int]] = make.open_listeners(self._config, self._parent)
        return opened

    # --- supervision, in the main thread

    def _follow(self) -> int:
        previous = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            has_reported = has_started = has_drained = False
            while not all(server.has_ended for server in self._servers):
                time.sleep(TICK_S)
                for server in self._servers:
                    server.check()
                    if server.error is not None and not has_started:
                        raise server.error
                serving = [server for server in self._servers if server.is_serving]
                has_started = has_started or len(serving) == self._count
                # At the first, which may have answered: from now on this process is restarted.
                if serving and not has_reported:
                    has_reported = True
                    if self._parent is not None:
                        self._parent.report_serving(serving[0].maintenance)
                if not has_drained and all(s.is_drained or s.has_ended for s in self._servers):
                    has_drained = True
                    if self._parent is not None:
                        self._parent.report_drained()
            return max(server.status for server in self._servers)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        for server in self._servers:
            server.send_signal(number)

    @property
    def is_ending(self) -> bool:
        """Whether API servers are restarted no more."""
        return bool(self._num_signals) or self._broker.is_dead


class ApiServer:
    """One API server, over all its restarts; a thread receives its messages."""

    def __init__(
        self,
        owner: ApiServers,
        index: int,
        descriptors: Mapping[str, Sequence[int]],
        options: Mapping[str, str],
    ) -> None:
        self._owner = owner
        self._options = dict(options)
        config = owner._config
        self._index = index
        self._descriptors = {name: list(each) for name, each in descriptors.items()}
        self._max_restarts = config.service.max_restarts
        self._restarts = self._crash_count = 0
        self._serving_since_s = inf
        self._checked_s = 0.0
        self.is_drained = False
        self.has_ended = False
        """Whether it has ended for good."""
        self.status = 1
        self.error: EngineError | None = None
        self.maintenance = ""
        level = logging.getLogger("core").getEffectiveLevel()
        self._start = Start(
            target="builtin_plugins.commands.serve.api_server:run",
            process=f"api {index}",
            plan=owner._registry.plan,
            config=config,
            sys_path=[os.path.abspath(folder) for folder in sys.path],
            log_level=logging.getLevelName(level).lower(),
            rank=index,
        )
        self._child = self._launch()
        threading.Thread(target=self._run, name=f"api-server-{index}", daemon=True).start()

    @property
    def is_serving(self) -> bool:
        """Whether it accepts connections."""
        return self._serving_since_s < inf

    def send_signal(self, number: int) -> None:
        """Drain it, or stop it at once with the second signal or while it starts."""
        if self.is_serving:
            self._child.process.send_signal(number)
        else:
            self.status = 0
            self.kill()

    def kill(self) -> None:
        """Kill it."""
        self.has_ended = True
        self._child.kill()

    def check(self) -> None:
        """Kill it when it takes more memory than --api-memory-limit."""
        limit = self._owner._memory_limit
        now_s = time.monotonic()
        if not limit or now_s < self._checked_s + CHECK_S or self.has_ended:
            return
        self._checked_s = now_s
        taken = resident_bytes(self._child.pid)
        if taken > limit:
            log.error(
                "API server %d takes %s of memory, more than %s (--api-memory-limit)",
                self._index,
                show_bytes(taken),
                show_bytes(limit),
            )
            self._child.kill()

    def _launch(self) -> Child:
        inherited = [each for found in self._descriptors.values() for each in found]

        def launch(
            command: Sequence[str], *, pass_fds: Sequence[int], **options: Any
        ) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, pass_fds=(*pass_fds, *inherited), **options)

        # Not a group leader: the parent kills the whole group of this process.
        child = Child(self._start, messages.FromApiServer, leader=False, launch=launch)
        if self._owner._memory_limit:
            limit_allocations(child.pid, self._owner._memory_limit)
        child.channel.send(messages.Begin(self._restarts, self._descriptors, self._options))
        return child

    # --- in its thread

    def _run(self) -> None:
        while not self.has_ended:
            session = self._owner._broker.open(self._child.channel.send)
            error: EngineError = EngineDead("it has ended")
            try:
                while True:
                    self._receive(session, self._child.receive())
            except EngineError as found:
                error = found
            except Exception as failed:
                log.exception("a message of API server %d could not be handled", self._index)
                error = EngineDead(f"a message could not be handled: {failed!r}")
            self._owner._broker.close(session)
            self._child.close()
            self._restart(error)

    def _receive(self, session: Any, message: Any) -> None:
        match message:
            case None:
                pass
            case messages.Serving(maintenance):
                self.maintenance = maintenance
                self._serving_since_s = time.monotonic()
                if self._restarts:
                    log.warning("API server %d is back (restart %d)", self._index, self._restarts)
            case messages.Drained():
                self.is_drained = True
            case messages.Left(status):
                self.status = status
            case _:
                self._owner._broker.receive(session, message)

    def _restart(self, error: EngineError) -> None:
        """Start it again, unless it should end, cannot start, or dies too often."""
        was_serving = self.is_serving
        is_steady = time.monotonic() - self._serving_since_s > STEADY_S
        self._serving_since_s = inf
        self._crash_count = 1 if is_steady else self._crash_count + 1
        may_restart = was_serving or self._restarts > 0
        if self.has_ended or self._owner.is_ending or self.is_drained:
            self.has_ended = True
            return
        if not may_restart or self._crash_count > self._max_restarts:
            self.error = error
            self.has_ended = True
            log.error("API server %d is given up: %s", self._index, error)
            return
        log.error("API server %d died and is restarted: %s", self._index, error)
        time.sleep(min(LONGEST_PAUSE_S, 0.05 * (2 ** (self._crash_count - 1) - 1)))
        if not self.has_ended:  # a signal may have come
            self._restarts += 1
            self._child = self._launch()
