"""The side that wants blocks: a connection to one rank of another engine. For one thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from builtin_plugins.kv_connectors.tcp.protocol import (
    MOST_BYTES,
    NONCE_BYTES,
    VERSION,
    Challenge,
    FromClient,
    FromServer,
    Get,
    Gone,
    Hello,
    Here,
    Join,
    PeerError,
    Refused,
    Welcome,
    check_facts,
    is_proof,
    proof,
)
from core.api import BlockKey

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Bytes

    Held = tuple[Bytes, bytes]
    """A block's bytes and its seal."""

BROKEN: Final = (
    zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromServer).decode


class Wire(Protocol):
    """A way by which memory of another process is read, if that has made it known.

    Every method may raise whatever it likes.
    """

    name: str
    """Engines whose wires have other names do not understand each other."""

    def register(self, memory: Bytes) -> None:
        """Make memory known, for others to read and to be read into; it stays where it is.

        Called before all else.
        """

    def introduce(self) -> bytes:
        """Return what others need to find this end."""

    def read(self, introduction: bytes, address: int, place: Bytes, timeout_s: float) -> None:
        """Fill a place, which was made known, with what lies at an address of whoever has
        introduced itself so.
        """

    def close(self) -> None:
        """End it."""


class Connection:
    """Asks one rank of another engine for blocks.

    Every method raises `PeerError`; it is of no use afterwards.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        token: bytes,
        facts: Mapping[str, Any],
        *,
        most_bytes: int,
        timeout_s: float,
        wire: Wire | None = None,
    ) -> None:
        """`most_bytes`: of a block; `timeout_s`: for each answer; `wire`: by which blocks are read,
        if they are not sent.
        """
        self._address = address
        self._timeout_s = timeout_s
        self._wire = wire
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max(MOST_BYTES, most_bytes))
        self._monitor = self._socket.get_monitor_socket(BROKEN)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._num_asked = 0
        try:
            self._socket.connect(address)
            self._meet(token, facts)
        except zmq.ZMQError as error:
            self.close()
            raise PeerError(f"{address}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _meet(self, token: bytes, facts: Mapping[str, Any]) -> None:
        hello = secrets.token_bytes(NONCE_BYTES)
        self._say(Hello(VERSION, hello))
        challenge: Challenge = self._hear(Challenge)
        if not is_proof(challenge.proof, token, "server", hello, challenge.nonce):
            raise PeerError(f"{self._address} has another token")
        self._say(Join(proof(token, "client", hello, challenge.nonce)))
        try:
            welcome: Welcome = self._hear(Welcome)
            check_facts(facts, welcome.facts)
            self._introduction = welcome.introduction
        except (PeerError, ValueError) as error:
            kind = type(error) if isinstance(error, PeerError) else PeerError
            raise kind(f"{self._address}: {error}") from error

    def get(
        self, key: BlockKey, num_bytes: int, *, waits: bool, landing: Bytes | None = None
    ) -> Held | None:
        """Return a block of so many bytes, and its seal; None where it is not there.

        `landing`: where a wire reads it to.
        """
        self._num_asked += 1
        self._say(Get(self._num_asked, key, waits))
        found: Here | Gone = self._hear(Here, Gone)
        if found.number != self._num_asked:
            raise PeerError(f"{self._address} answers what was not asked")
        if isinstance(found, Gone):
            return None
        if self._wire is None or landing is None:
            # What ZeroMQ has received stays where it is.
            landing = np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)
        else:
            self._read(self._wire, found.address, landing)
        if landing.nbytes != num_bytes:
            raise PeerError(f"{self._address} sends a block of another size")
        return landing, found.seal

    def _read(self, wire: Wire, address: int, landing: Bytes) -> None:
        try:
            wire.read(self._introduction, address, landing, self._timeout_s)
        except Exception as error:  # a library's own
            raise PeerError(f"{self._address}, by {wire.name}: {error}") from error

    def _say(self, message: FromClient) -> None:
        self._socket.send(_encode(message))

    def _hear(self, *kinds: type[Any]) -> Any:
        """Wait for one of these messages."""
        until_s = time.monotonic() + self._timeout_s
        while True:
            ready = dict(self._poller.poll(int(max(0.0, until_s - time.monotonic()) * 1000)))
            if self._socket in ready:
                break
            if self._monitor in ready:
                recv_monitor_message(self._monitor)
                raise PeerError(f"the connection to {self._address} broke")
            raise PeerError(f"{self._address} does not answer within {self._timeout_s:g} s")
        try:
            message = _decode(self._socket.recv())
        except msgspec.DecodeError as error:
            raise PeerError(f"{self._address} does not speak this protocol") from error
        if isinstance(message, Refused):
            raise PeerError(f"{self._address} refuses: {message.reason}")
        if not isinstance(message, kinds):
            raise PeerError(f"{self._address} answers what was not asked")
        return message

    def close(self) -> None:
        """Hang up."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
