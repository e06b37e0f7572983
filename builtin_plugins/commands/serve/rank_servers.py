"""One server per rank (`--data-parallel-multi-port-external-lb`), below a supervisor with a port.

Each server is forked from this process with the port after the one before, and restarts its own
parts. The supervisor restarts a server that is killed or that no longer answers. Its own port
reports their state to a load balancer or an orchestrator. No event loop runs while it forks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

from builtin_plugins.clients.api import RANK
from builtin_plugins.commands.serve.forks import send_signal
from core.api import ConfigError, EngineConfig

log = logging.getLogger(__name__)

MULTI_PORT: Final = "data_parallel_multi_port_external_lb"
POLL_S: Final = 0.1
"""Interval in which ended servers are noticed, in seconds."""
LONGEST_PAUSE_S: Final = 5.0
"""Maximum pause in seconds between two starts of a server that dies."""
STEADY_S: Final = 60.0
"""Uptime in seconds after which the crash counter resets."""
READ_S: Final = 5.0
"""Timeout to read a request to the supervisor, in seconds."""
MAX_CONNECTIONS: Final = 64
"""Open connections to the supervisor; its probes need descriptors, too."""
PR_SET_PDEATHSIG: Final = 1
"""See prctl(2)."""


@dataclass(slots=True)
class RankServer:
    """The server of one rank."""

    rank: int
    port: int
    pid: int = 0
    """0: it has ended."""
    health: str = "starting"
    """Status in its last answer to a probe, or why there was none."""
    failed_probes: int = 0
    restarts: int = 0
    crash_count: int = 0
    started_s: float = 0.0
    status: int | None = None
    """Exit status; None while it runs or is to be started."""
    has_served: bool = False
    is_up: bool = False
    """Whether it has answered a probe since its last start: before, it loads."""


class RankServers:
    """Supervises a server for each rank."""

    def __init__(self, config: EngineConfig) -> None:
        """Raise `ConfigError` for settings that need one port."""
        options = config.options
        size = config.parallel.data_parallel_size
        port = options.get("port", 8000)
        for name in (RANK, "data_parallel_hybrid_lb", "data_parallel_start_rank", "uds"):
            if options.get(name) not in (None, False):
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag}: got {options[name]}; expected it unset with "
                    "--data-parallel-multi-port-external-lb, which has a port for every rank. "
                    "Remove it."
                )
        if not 1 <= port <= 65536 - size:
            raise ConfigError(
                f"--port: got {port}; expected 1 to {65536 - size}, since {size} ranks have a port "
                "each. Correct it."
            )
        self._config = config
        self._host: str = options.get("host") or "127.0.0.1"
        self._port: int = options.get("data_parallel_supervisor_port", 9256)
        self._interval_s: float = options.get("dp_supervisor_probe_interval_s", 5.0)
        self._timeout_s: float = options.get("dp_supervisor_probe_timeout_s", 5.0)
        self._max_failed: int = options.get("dp_supervisor_probe_failure_threshold", 3)
        if port <= self._port < port + size:
            raise ConfigError(
                f"--data-parallel-supervisor-port: got {self._port}; expected a port that no rank "
                f"has ({port} to {port + size - 1}). Choose another one."
            )
        self._servers = [RankServer(rank, port + rank) for rank in range(size)]
        self._num_signals = 0
        self._answering: set[asyncio.Task[Any]] = set()

    def run(self) -> EngineConfig | int:
        """Return the exit status (in the supervisor), or the configuration of a rank's server."""
        self._listener = self._listen()
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            while due := [each for each in self._servers if not each.pid and each.status is None]:
                for server in due:
                    if not self._fork(server):
                        self._listener.close()
                        for number in numbers:
                            signal.signal(number, previous[number])
                        return self._config_of(server)
                asyncio.run(self._watch())
        finally:
            for server in self._servers:
                if server.pid and server.pid != os.getpid():
                    send_signal(server.pid, signal.SIGKILL, group=True)
        self._listener.close()
        return max(server.status or 0 for server in self._servers)

    def _config_of(self, server: RankServer) -> EngineConfig:
        options = {**self._config.options, MULTI_PORT: False, RANK: server.rank}
        return replace(self._config, options=options | {"port": server.port})

    def _fork(self, server: RankServer) -> bool:
        """Fork a server; return False in it."""
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)  # the supervisor forwards signals of a terminal
            # its end is the server's, as after a SIGTERM
            with contextlib.suppress(AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            for each in self._servers:
                each.pid = 0
            return False
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        server.pid = pid
        server.started_s = time.monotonic()
        server.failed_probes = 0
        server.is_up = False
        server.health = "starting"
        return True

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            raise ConfigError(
                f"--data-parallel-supervisor-port {self._port}: cannot listen on {self._host}: "
                f"{error}. Choose another port."
            ) from error
        return listener

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        for server in self._servers:
            if server.pid:
                send_signal(server.pid, number)
            elif server.status is None:
                server.status = 0

    # --- while servers run

    async def _watch(self) -> None:
        """Return when a server must be started, or all have ended."""
        listener = self._listener.dup()
        web = await asyncio.start_server(self._answer, sock=listener)
        probes = [asyncio.ensure_future(self._probe(server)) for server in self._servers]
        try:
            while any(server.pid for server in self._servers):
                await asyncio.sleep(POLL_S)
                for server in self._servers:
                    self._reap(server)
                if any(not each.pid and each.status is None for each in self._servers):
                    pause_s = max(
                        LONGEST_PAUSE_S if each.crash_count > 6 else 0.1 * 2**each.crash_count
                        for each in self._servers
                        if not each.pid
                    )
                    await asyncio.sleep(0 if self._num_signals else pause_s)
                    return
        finally:
            for probe in probes:
                probe.cancel()
            web.close()
            if self._answering:
                await asyncio.wait(self._answering)

    def _reap(self, server: RankServer) -> None:
        """Note the end of a server, and whether it is started again."""
        if not server.pid:
            return
        pid, status = os.waitpid(server.pid, os.WNOHANG)
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        server.pid = 0
        server.health = f"ended with status {code}"
        is_steady = time.monotonic() - server.started_s > STEADY_S
        server.crash_count = 1 if is_steady else server.crash_count + 1
        may_restart = (
            code < 0
            and not self._num_signals
            and server.has_served
            and server.crash_count <= self._config.service.max_restarts
        )
        if may_restart:
            server.restarts += 1
            log.error("the server of rank %d died (%d) and is restarted", server.rank, code)
            return
        server.status = code if code >= 0 else 1
        if not self._num_signals:
            log.error("the server of rank %d has ended with status %d", server.rank, code)
        if not server.has_served:  # a start that fails, fails for all
            for other in self._servers:
                if other.pid:
                    send_signal(other.pid, signal.SIGTERM)

    async def _probe(self, server: RankServer) -> None:
        """Probe a server periodically, and kill one that no longer answers."""
        while True:
            await asyncio.sleep(self._interval_s if server.is_up else min(self._interval_s, 1.0))
            if not server.pid:
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    server.health = await self._health(server)
                server.has_served = True
                server.is_up = True
                server.failed_probes = 0
            except (OSError, TimeoutError, ValueError) as error:
                if not server.is_up:
                    continue  # it loads
                server.failed_probes += 1
                server.health = f"no answer: {type(error).__name__}"
            if server.failed_probes >= self._max_failed and server.pid and not self._num_signals:
                log.error(
                    "the server of rank %d has not answered %d probes and is killed",
                    server.rank,
                    server.failed_probes,
                )
                send_signal(server.pid, signal.SIGKILL)  # what is below it ends with it

    async def _health(self, server: RankServer) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        tls = None
        if self._config.options.get("ssl_certfile"):
            tls = ssl.create_default_context()
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE  # a server of this machine, started by this process
        reader, writer = await asyncio.open_connection(host, server.port, ssl=tls)
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: rank\r\nConnection: close\r\n\r\n")
            data = await reader.read(-1)
        finally:
            writer.close()
        status: str = json.loads(data.partition(b"\r\n\r\n")[2])["status"]
        return status

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request to the supervisor's port."""
        if len(self._answering) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        if task is not None:
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._response(head.split(b" ", 2)[1].split(b"?")[0]))
            await writer.drain()
        except (OSError, TimeoutError, EOFError, IndexError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _response(self, path: bytes) -> bytes:
        body: dict[str, Any] = {"status": "alive"}
        line = "200 OK"
        if path in (b"/health", b"/readyz"):
            is_ready = all(each.pid and each.health == "ready" for each in self._servers)
            line = "200 OK" if is_ready else "503 Service Unavailable"
            ranks = [
                {
                    "rank": each.rank,
                    "port": each.port,
                    "status": each.health,
                    "restarts": each.restarts,
                }
                for each in self._servers
            ]
            body = {"status": "ready" if is_ready else "not ready", "ranks": ranks}
        elif path != b"/livez":
            line = "404 Not Found"
            body = {"error": {"message": "expected /health, /readyz or /livez.", "code": 404}}
        text = json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {line}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
            "connection: close\r\n\r\n"
        )
        return head.encode() + text
