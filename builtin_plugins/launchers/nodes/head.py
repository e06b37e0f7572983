"""The head's port for its nodes: starts and ends processes there, and learns how they ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import zmq

from builtin_plugins.executors.api import TICK_S, Credentials, Exit, TcpListener
from builtin_plugins.launchers.nodes.keys import NodeKeys
from builtin_plugins.launchers.nodes.messages import (
    Ended,
    Finish,
    FromNode,
    Join,
    Joined,
    Kill,
    Launch,
    Probe,
    Refused,
)
from builtin_plugins.launchers.nodes.settings import NodeSettings
from core.api import ConfigError

GOOD_END: Final = "it exited with status 0"
"""Cause of an end after the work is done."""
LINGER_MS: Final = 1000
"""Time for the last messages to leave."""
FINISH_S: Final = 5.0
"""Time for the nodes to read that they end."""


class NodeProcess:
    """A process on a node, as a `RemoteProcess`."""

    def __init__(self, port: NodePort, node: int, number: int) -> None:
        self._port = port
        self._node = node
        self._number = number

    def exit(self) -> Exit | None:
        """Return how it has ended; None while it runs or waits for its node."""
        return self._port.exit_of(self._node, self._number)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        self._port.send(self._node, Kill(self._number))


class NodePort:
    """Accepts nodes that have the key; one thread owns the socket."""

    def __init__(
        self,
        listener: TcpListener,
        settings: NodeSettings,
        keys: NodeKeys,
        check: Callable[[Join], str],
    ) -> None:
        """`check` returns why a node is refused, or nothing.

        Raises `ConfigError` for a port in use.
        """
        self._settings = settings
        self._check = check
        try:
            self._socket = listener.bind(
                zmq.ROUTER, keys.head.secret, keys.node.public, settings.master_port
            )
        except zmq.ZMQError as error:
            raise ConfigError(
                f"--master-port: got {settings.master_port}; expected a free port of "
                f"{listener.host} ({error.strerror}). Choose another one, on all nodes."
            ) from error
        self._socket.router_mandatory = True  # sending to a node that has left is an error
        self._socket.set_hwm(0)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(FromNode).decode
        self._until_s = time.monotonic() + settings.timeout_s
        self._outbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._waiting: dict[int, list[Any]] = {}
        """Messages to nodes that have not joined."""
        self._identities: dict[int, bytes] = {}
        """Socket identities of joined nodes."""
        self._addresses: dict[int, str] = {}
        self._lost: set[int] = set()
        self._exits: dict[int, Exit] = {}
        """Ends of processes by number."""
        self._num_launched = 0
        self._refusal = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._thread.start()

    # --- for the launcher, from any thread

    def launch(
        self, node: int, credentials: Credentials, environment: Mapping[str, str]
    ) -> NodeProcess:
        """Start a process on a node, when that has joined."""
        number = self._num_launched
        self._num_launched += 1
        self.send(node, Launch(number, credentials, dict(environment)))
        return NodeProcess(self, node, number)

    def send(self, node: int, message: Any) -> None:
        """Send a message to a node, or have it sent when the node joins."""
        self._outbox.put((node, message))

    def exit_of(self, node: int, number: int) -> Exit | None:
        """Return how a process has ended; None while it runs or waits for its node."""
        if (found := self._exits.get(number)) is not None:
            return found
        if node in self._lost:
            return Exit(f"node {node} at {self._addresses[node]} has left", was_killed=True)
        if self._closed.is_set():
            return Exit("its node was released")
        if node not in self._identities and time.monotonic() > self._until_s:
            settings = self._settings
            why = f"; refused: {self._refusal}" if self._refusal else ""
            return Exit(
                f"node {node} of --nnodes {settings.num_nodes} has not joined at "
                f"{settings.master_addr}:{settings.master_port} within {settings.timeout_s:g} s "
                f"(--node-timeout){why}"
            )
        return None

    def close(self) -> None:
        """Let the nodes go: they end if all of their processes have ended well."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()

    # --- in the thread

    def _run(self) -> None:
        while not self._closed.is_set():
            self._flush()
            for node in list(self._identities):
                self._send_now(node, Probe())
            if self._socket.poll(int(TICK_S * 1000)):
                self._receive()
        self._flush()
        ends = [each.cause for each in self._exits.values()]
        has_finished = len(ends) == self._num_launched and set(ends) <= {GOOD_END}
        if has_finished:
            self._finish()
        self._socket.close(LINGER_MS)

    def _finish(self) -> None:
        """End the nodes, and wait until they have left: what they have not read is lost with the
        connection.
        """
        for node in list(self._identities):
            self._send_now(node, Finish())
        until_s = time.monotonic() + FINISH_S
        while self._identities and time.monotonic() < until_s:
            for node in list(self._identities):
                self._send_now(node, Probe())
            if self._socket.poll(int(TICK_S * 1000)):
                self._receive()

    def _flush(self) -> None:
        while not self._outbox.empty():
            node, message = self._outbox.get()
            if node in self._identities:
                self._send_now(node, message)
            else:
                self._waiting.setdefault(node, []).append(message)

    def _send_now(self, node: int, message: Any) -> None:
        try:
            self._socket.send_multipart([self._identities[node], self._encode(message)])
        except zmq.ZMQError:  # no route to it
            self._lost.add(node)
            del self._identities[node]

    def _receive(self) -> None:
        identity, data = self._socket.recv_multipart()
        try:
            message = self._decode(data)
        except msgspec.MsgspecError:
            self._answer(identity, Refused("the node's engine has another version"))
            return
        if isinstance(message, Ended):
            self._exits[message.number] = Exit(message.cause, message.was_killed)
            return
        node = message.node_rank
        if node in self._identities or node in self._lost:
            self._answer(identity, Refused(f"node {node} has joined already", may_retry=True))
            return
        if reason := self._check(message):
            self._refusal = reason
            self._answer(identity, Refused(reason))
            return
        self._addresses[node] = message.address
        self._identities[node] = identity
        self._send_now(node, Joined())
        for each in self._waiting.pop(node, ()):
            self._outbox.put((node, each))

    def _answer(self, identity: bytes, message: Refused) -> None:
        try:
            self._socket.send_multipart([identity, self._encode(message)])
        except zmq.ZMQError:
            return  # it has left
