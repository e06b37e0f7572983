"""A node without a server: starts the processes that its head asks for, until the head stops.

It listens on nothing. Without its head its processes end; the head may come back, since it starts
its engine again after a death.
"""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from builtin_plugins.executors.api import LOST_EVENTS, TICK_S, client_socket, own_address
from builtin_plugins.launchers.nodes.host_process import HostProcess
from builtin_plugins.launchers.nodes.keys import NodeKeys, read_keys
from builtin_plugins.launchers.nodes.messages import (
    Ended,
    Finish,
    Join,
    Joined,
    Kill,
    Launch,
    Refused,
    ToNode,
)
from builtin_plugins.launchers.nodes.settings import (
    NodeSettings,
    check_nodes,
    given_settings,
    model_hash,
)
from core import __version__
from core.api import ConfigError, EngineDead

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry

log = logging.getLogger(__name__)

CONNECT_S: Final = 2.0
"""Longest wait for one attempt to connect."""
ANSWER_S: Final = 10.0
"""Longest wait for the answer to `Join`."""
RETRY_S: Final = 0.2
"""Pause between two attempts."""
REJOIN_S: Final = 10.0
"""Longest wait for a head that was lost."""


def run_node(config: EngineConfig, registry: Registry, names: Iterable[str]) -> int:
    """Run a node until its head stops; return the exit status.

    `names` are the settings that were given, which the head compares with its own. Raises
    `ConfigError` if the head cannot be reached or refuses the node.
    """
    check_nodes(config)
    settings = NodeSettings.from_config(config)
    keys = read_keys(settings.key_file)
    if settings.address is not None:
        own_address(settings.address, "--node-address")
    join = Join(
        node_rank=settings.node_rank,
        address="",
        version=__version__,
        settings=given_settings(config, names),
        model=model_hash(config, registry),
    )
    node = Node(settings, keys, join)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: node.stop())
    return node.run()


class HeadConnection:
    """The node's end of its connection to the head."""

    def __init__(self, settings: NodeSettings, keys: NodeKeys) -> None:
        """Connect. Raises `OSError` if nothing answers at the address."""
        place = (settings.master_addr, settings.master_port)
        with socket.create_connection(place, CONNECT_S) as probe:
            peer = probe.getpeername()[0]
            self.address: str = settings.address or probe.getsockname()[0]
            """This host's address for other nodes."""
        is_ipv6 = ":" in peer
        self._socket = client_socket(
            zmq.DEALER, keys.head.public, keys.node.public, keys.node.secret, ipv6=is_ipv6
        )
        events = LOST_EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._monitor = self._socket.get_monitor_socket(events)
        self._decode = msgspec.msgpack.Decoder(ToNode).decode
        self.knows_key = False
        """Whether the head has the same key."""
        self.is_lost = False
        host = f"[{peer}]" if is_ipv6 else peer
        self._socket.connect(f"tcp://{host}:{settings.master_port}")

    def send(self, message: Any) -> None:
        """Send a message, unless the connection is lost."""
        with suppress(zmq.Again):
            self._socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)

    def receive(self) -> Any:
        """Return the next message, or None after a tick."""
        if self._socket.poll(int(TICK_S * 1000)):
            return self._decode(self._socket.recv())
        while self._monitor.poll(0):
            if recv_monitor_message(self._monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.knows_key = True
            else:
                self.is_lost = True
        return None

    def join(self, join: Join) -> Joined | Refused | None:
        """Return the head's answer; None if there is none."""
        self.send(msgspec.structs.replace(join, address=self.address))
        until_s = time.monotonic() + ANSWER_S
        while not self.is_lost and time.monotonic() < until_s:
            message = self.receive()
            if isinstance(message, (Joined, Refused)):
                return message
        return None

    def close(self) -> None:
        """Close the connection."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close(0)


class Node:
    """Joins the head, and runs its processes here."""

    def __init__(self, settings: NodeSettings, keys: NodeKeys, join: Join) -> None:
        self._settings = settings
        self._keys = keys
        self._join = join
        self._place = f"{settings.master_addr}:{settings.master_port}"
        self._processes: dict[int, HostProcess] = {}
        self._is_stopped = False
        """Whether `stop` or the head has ended this node."""

    def run(self) -> int:
        """Run until the head or `stop` ends this node; return the exit status."""
        log.info("node %d is waiting for the head at %s", self._settings.node_rank, self._place)
        connection = self._connect(self._settings.timeout_s, is_first=True)
        while connection is not None:
            log.info("node %d has joined the head at %s", self._settings.node_rank, self._place)
            try:
                self._serve(connection)
            finally:
                self._end_processes()
                connection.close()
            if self._is_stopped:
                return 0
            log.error("the head at %s has left; waiting %g s for it", self._place, REJOIN_S)
            connection = self._connect(REJOIN_S, is_first=False)
        return 0

    def stop(self) -> None:
        """End this node and its processes soon; may be called by any thread or signal handler."""
        self._is_stopped = True

    def _connect(self, timeout_s: float, *, is_first: bool) -> HeadConnection | None:
        """Return the connection that the head has accepted; None after `stop`.

        Raises `ConfigError` for a head that refuses this node, or is not there in time.
        """
        reason = ""
        until_s = time.monotonic() + timeout_s
        while not self._is_stopped and time.monotonic() < until_s:
            try:
                connection = HeadConnection(self._settings, self._keys)
            except OSError as error:
                reason = str(error)
                time.sleep(RETRY_S)
                continue
            answer = connection.join(self._join)
            if isinstance(answer, Joined):
                return connection
            connection.close()
            if isinstance(answer, Refused) and not answer.may_retry:
                raise ConfigError(answer.reason)
            if is_first and connection.is_lost and not connection.knows_key:
                raise ConfigError(
                    f"--node-key: got {self._settings.key_file}, with which {self._place} ended "
                    "the connection; expected the secret of the head. Copy its file."
                )
            reason = answer.reason if isinstance(answer, Refused) else "it does not answer"
            time.sleep(RETRY_S)
        if self._is_stopped:
            return None
        if is_first:
            raise ConfigError(
                f"--master-addr: got {self._settings.master_addr}; expected the address of a head "
                f"that listens on --master-port {self._settings.master_port}: {reason}, for "
                f"{timeout_s:g} s (--node-timeout). Start the head, or correct the address."
            )
        raise EngineDead(
            f"the head at {self._place} has left and is not back after {timeout_s:g} s: {reason}. "
            "Start head and nodes again."
        )

    def _serve(self, connection: HeadConnection) -> None:
        """Start and end processes until the head ends this, or the connection does."""
        while not self._is_stopped and not connection.is_lost:
            message = connection.receive()
            if isinstance(message, Launch):
                self._launch(connection, message)
            elif isinstance(message, Kill) and message.number in self._processes:
                self._processes[message.number].kill()
            elif isinstance(message, Finish):
                self._is_stopped = True
            for number, process in list(self._processes.items()):
                if (found := process.exit()) is not None:
                    del self._processes[number]
                    connection.send(Ended(number, found.cause, found.was_killed))

    def _launch(self, connection: HeadConnection, message: Launch) -> None:
        credentials = msgspec.structs.replace(message.credentials, host=connection.address)
        try:
            process = HostProcess(credentials, message.environment)
        except OSError as error:
            connection.send(Ended(message.number, f"it cannot be started: {error}", False))
            return
        self._processes[message.number] = process

    def _end_processes(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()
