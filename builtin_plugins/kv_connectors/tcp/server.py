"""Server: one thread that serves blocks from host memory to peers with the right token."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import zmq

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
    Refused,
    Welcome,
    is_proof,
    proof,
)

log = logging.getLogger(__name__)
POLL_MS: Final = 200
WAITING_POLL_MS: Final = 2
"""Poll interval while a peer waits for a block that is being copied."""
WAIT_S: Final = 2.0
"""How long a peer waits for a block: blocks are offered before they are copied."""
MAX_PEERS: Final = 4096
"""Peers remembered, of those in a handshake and of those with the token each."""
MAX_WAITING: Final = 1 << 16
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromClient).decode

StoredBlock = tuple["np.ndarray[Any, Any]", bytes]
"""A block's bytes and its checksum."""


class BlockSource(Protocol):
    """Provides the blocks. Called in the server's thread."""

    def acquire(self, key: BlockKey) -> StoredBlock | None:
        """Return a block. Its buffer stays unchanged until `release`."""

    def release(self, buffer: np.ndarray[Any, Any]) -> None:
        """Release a buffer after it was sent."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """The nonces of a connection."""

    hello: bytes
    challenge: bytes


@dataclass(frozen=True, slots=True)
class WaitingGet:
    """A peer's request for a block that is not stored yet."""

    peer: bytes
    get: Get
    until_s: float
    """Deadline, by the monotonic clock."""


class BlockServer:
    """Serves blocks on one address."""

    def __init__(
        self, address: str, token: bytes, facts: str, source: BlockSource, metadata: bytes = b""
    ) -> None:
        """`metadata`: of the transport by which peers read; empty: blocks are sent.

        Raises `zmq.ZMQError` if the address cannot be bound.
        """
        self._token = token
        self._facts = facts
        self._source = source
        self._metadata = metadata
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._socket.bind(address)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._handshakes: OrderedDict[bytes, Handshake] = OrderedDict()
        """Peers in a handshake by ZeroMQ routing id, which no other connection can take over."""
        self._trusted: OrderedDict[bytes, None] = OrderedDict()
        """Routing ids of peers with the token. Peers without it cannot evict them."""
        self._waiting: list[WaitingGet] = []
        self._sending: list[tuple[zmq.MessageTracker, np.ndarray[Any, Any]]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close all connections."""
        self._closed.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._closed.is_set():
            if self._socket.poll(WAITING_POLL_MS if self._waiting else POLL_MS):
                peer_id, *frames = self._socket.recv_multipart()
                try:
                    self._handle(peer_id, _decode(frames[-1]) if len(frames) == 1 else None)
                except msgspec.DecodeError:
                    self._send(peer_id, Refused("that is no message of this protocol"))
            if self._waiting:
                self._retry_waiting()
            self._release_sent()

    def _handle(self, peer_id: bytes, message: FromClient | None) -> None:
        handshake = self._handshakes.get(peer_id)
        if (
            isinstance(message, Hello)
            and message.version == VERSION
            and len(message.nonce) == NONCE_BYTES
        ):
            nonce = secrets.token_bytes(NONCE_BYTES)
            self._trusted.pop(peer_id, None)
            _remember(self._handshakes, peer_id, Handshake(message.nonce, nonce))
            server_proof = proof(self._token, "server", message.nonce, nonce)
            self._send(peer_id, Challenge(nonce, server_proof))
        elif isinstance(message, Hello):
            reason = f"it speaks version {VERSION} of this protocol, not {message.version}"
            self._send(peer_id, Refused(reason))
        elif isinstance(message, Join) and handshake is not None:
            if is_proof(message.proof, self._token, "client", handshake.hello, handshake.challenge):
                del self._handshakes[peer_id]
                _remember(self._trusted, peer_id, None)
                self._send(peer_id, Welcome(self._facts, self._metadata))
            else:
                log.warning("rejected a KV peer with a wrong token")
                self._send(peer_id, Refused("the token is another one"))
        elif isinstance(message, Get) and peer_id in self._trusted:
            if not self._send_block(peer_id, message):
                if message.waits and len(self._waiting) < MAX_WAITING:
                    until_s = time.monotonic() + WAIT_S
                    self._waiting.append(WaitingGet(peer_id, message, until_s))
                else:
                    self._send(peer_id, BlockMissing(message.number))
        else:
            self._send(peer_id, Refused("the handshake is incomplete"))

    def _retry_waiting(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for each in waiting:
            if self._send_block(each.peer, each.get):
                continue
            if time.monotonic() < each.until_s:
                self._waiting.append(each)
            else:
                self._send(each.peer, BlockMissing(each.get.number))

    def _send_block(self, peer_id: bytes, get: Get) -> bool:
        """Send a block or its address. Return False if it is not stored."""
        stored = self._source.acquire(get.key)
        if stored is None:
            return False
        buffer, checksum = stored
        if self._metadata:
            self._send(peer_id, BlockReply(get.number, checksum, buffer.ctypes.data))
            self._source.release(buffer)
            return True
        header = _encode(BlockReply(get.number, checksum))
        self._socket.send_multipart([peer_id, header], zmq.SNDMORE)
        tracker = self._socket.send(buffer.data, copy=False, track=True)
        self._sending.append((tracker, buffer))
        return True

    def _release_sent(self) -> None:
        """Release the buffers that ZeroMQ has sent."""
        sending = self._sending
        self._sending = []
        for tracker, buffer in sending:
            if tracker.done:
                self._source.release(buffer)
            else:
                self._sending.append((tracker, buffer))

    def _send(self, peer_id: bytes, message: FromServer) -> None:
        self._socket.send_multipart([peer_id, _encode(message)])


def _remember(peers: OrderedDict[bytes, Any], peer_id: bytes, value: Any) -> None:
    """Add a peer; forget the oldest one of too many."""
    peers[peer_id] = value
    if len(peers) > MAX_PEERS:
        peers.popitem(last=False)
