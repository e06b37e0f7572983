"""Client: a connection to one rank of another engine. For one thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from builtin_plugins.kv_connectors.contract import BlockKey
from builtin_plugins.kv_connectors.tcp.protocol import (
    MAX_MESSAGE_BYTES,
    NONCE_BYTES,
    VERSION,
    BlockMissing,
    BlockReply,
    Challenge,
    FromClient,
    FromServer,
    Get,
    Hello,
    Join,
    PeerError,
    Refused,
    Welcome,
    check_facts,
    is_proof,
    proof,
)

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.contract import Bytes

    StoredBlock = tuple[Bytes, bytes]
    """A block's bytes and its checksum."""

BROKEN: Final = (
    zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromServer).decode


class Transport(Protocol):
    """Reads registered memory of another process, for example by RDMA. Methods may raise."""

    name: str
    """Must be equal on both engines."""

    def register(self, memory: Bytes) -> None:
        """Register memory to read from or into. Called before all else; it never moves."""

    def metadata(self) -> bytes:
        """Return what a peer needs to reach this end."""

    def read(self, metadata: bytes, address: int, buffer: Bytes, timeout_s: float) -> None:
        """Fill a registered buffer from an address of the peer with this metadata."""

    def close(self) -> None:
        """Close this end."""


class Connection:
    """Fetches blocks of one rank of another engine.

    Every method raises `PeerError`; the connection is unusable afterwards.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        token: bytes,
        facts: Mapping[str, Any],
        *,
        max_block_bytes: int,
        timeout_s: float,
        transport: Transport | None = None,
    ) -> None:
        """`timeout_s`: limit of each answer. `transport`: reads the blocks; None: TCP."""
        self._address = address
        self._timeout_s = timeout_s
        self._transport = transport
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max(MAX_MESSAGE_BYTES, max_block_bytes))
        self._monitor = self._socket.get_monitor_socket(BROKEN)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._num_requests = 0
        try:
            self._socket.connect(address)
            self._handshake(token, facts)
        except zmq.ZMQError as error:
            self.close()
            raise PeerError(f"{address}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _handshake(self, token: bytes, facts: Mapping[str, Any]) -> None:
        hello = secrets.token_bytes(NONCE_BYTES)
        self._send(Hello(VERSION, hello))
        challenge: Challenge = self._receive(Challenge)
        if not is_proof(challenge.proof, token, "server", hello, challenge.nonce):
            raise PeerError(f"{self._address} has another token")
        self._send(Join(proof(token, "client", hello, challenge.nonce)))
        try:
            welcome: Welcome = self._receive(Welcome)
            check_facts(facts, welcome.facts)
            self._metadata = welcome.metadata
        except (PeerError, ValueError) as error:
            kind = type(error) if isinstance(error, PeerError) else PeerError
            raise kind(f"{self._address}: {error}") from error

    def get(
        self, key: BlockKey, num_bytes: int, *, waits: bool, buffer: Bytes | None = None
    ) -> StoredBlock | None:
        """Return a block of `num_bytes` and its checksum; None: the peer does not have it.

        `buffer`: destination of a transport's read.
        """
        self._num_requests += 1
        self._send(Get(self._num_requests, key, waits))
        answer: BlockReply | BlockMissing = self._receive(BlockReply, BlockMissing)
        if answer.number != self._num_requests:
            raise PeerError(f"{self._address} sends an unexpected answer")
        if isinstance(answer, BlockMissing):
            return None
        if self._transport is None or buffer is None:
            # Zero copy: the array is a view of ZeroMQ's buffer.
            buffer = np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)
        else:
            self._read(self._transport, answer.address, buffer)
        if buffer.nbytes != num_bytes:
            raise PeerError(f"{self._address} sends a block of another size")
        return buffer, answer.checksum

    def _read(self, transport: Transport, address: int, buffer: Bytes) -> None:
        try:
            transport.read(self._metadata, address, buffer, self._timeout_s)
        except Exception as error:  # a library's own exceptions
            raise PeerError(f"{self._address}, by {transport.name}: {error}") from error

    def _send(self, message: FromClient) -> None:
        self._socket.send(_encode(message))

    def _receive(self, *kinds: type[Any]) -> Any:
        """Wait for a message of one of these kinds."""
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
            raise PeerError(f"{self._address} sends an unexpected answer")
        return message

    def close(self) -> None:
        """Close the connection."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
