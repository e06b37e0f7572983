"""The side that has blocks: one thread that hands them out of host memory to whoever knows the
token.
"""

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
    Refused,
    Welcome,
    is_proof,
    proof,
)
from core.api import BlockKey

log = logging.getLogger(__name__)
POLL_MS: Final = 200
WAITING_POLL_MS: Final = 2
"""While somebody waits for a block that is being copied."""
WAIT_S: Final = 2.0
"""For a block that is not there yet: who asks has heard of it before it was copied."""
MOST_PEERS: Final = 4096
MOST_WAITING: Final = 1 << 16
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromClient).decode

Held = tuple["np.ndarray[Any, Any]", bytes]
"""A block's bytes and its seal."""


class Lender(Protocol):
    """Who has blocks. Called in the server's thread."""

    def lend(self, key: BlockKey) -> Held | None:
        """Return a block whose bytes stay as they are until they are given back."""

    def give_back(self, buffer: np.ndarray[Any, Any]) -> None:
        """They are sent."""


@dataclass(slots=True)
class Peer:
    """A connection, and how far it has come."""

    hello: bytes
    challenge: bytes
    is_trusted: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody's request for a block that is not there yet."""

    peer: bytes
    get: Get
    until_s: float
    """By the monotonic clock."""


class BlockServer:
    """Listens on one address."""

    def __init__(
        self, address: str, token: bytes, facts: str, lender: Lender, introduction: bytes = b""
    ) -> None:
        """`introduction`: by which others read blocks where they lie; empty: they are sent. Raises
        `zmq.ZMQError` where nobody
        can listen there."""
        self._token = token
        self._facts = facts
        self._lender = lender
        self._introduction = introduction
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._socket.bind(address)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._peers: OrderedDict[bytes, Peer] = OrderedDict()
        """By what ZeroMQ calls their connections, which nobody else can take on."""
        self._waiting: list[Waiting] = []
        self._sending: list[tuple[zmq.MessageTracker, np.ndarray[Any, Any]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up."""
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._socket.poll(WAITING_POLL_MS if self._waiting else POLL_MS):
                peer, *frames = self._socket.recv_multipart()
                try:
                    self._take(peer, _decode(frames[-1]) if len(frames) == 1 else None)
                except msgspec.DecodeError:
                    self._say(peer, Refused("that is no message of this protocol"))
            if self._waiting:
                self._look_again()
            self._take_back()

    def _take(self, name: bytes, message: FromClient | None) -> None:
        peer = self._peers.get(name)
        if (
            isinstance(message, Hello)
            and message.version == VERSION
            and len(message.nonce) == NONCE_BYTES
        ):
            nonce = secrets.token_bytes(NONCE_BYTES)
            self._peers[name] = Peer(message.nonce, nonce)
            if len(self._peers) > MOST_PEERS:
                self._peers.popitem(last=False)
            self._say(name, Challenge(nonce, proof(self._token, "server", message.nonce, nonce)))
        elif isinstance(message, Hello):
            self._say(
                name,
                Refused(f"it speaks version {VERSION} of this protocol, not {message.version}"),
            )
        elif isinstance(message, Join) and peer is not None:
            peer.is_trusted = is_proof(
                message.proof, self._token, "client", peer.hello, peer.challenge
            )
            if not peer.is_trusted:
                log.warning("somebody who does not know the token asked for cached blocks")
            welcome = Welcome(self._facts, self._introduction)
            self._say(name, welcome if peer.is_trusted else Refused("the token is another one"))
        elif isinstance(message, Get) and peer is not None and peer.is_trusted:
            if not self._give(name, message):
                if message.waits and len(self._waiting) < MOST_WAITING:
                    self._waiting.append(Waiting(name, message, time.monotonic() + WAIT_S))
                else:
                    self._say(name, Gone(message.number))
        else:
            self._say(name, Refused("it does not know who asks"))

    def _look_again(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for each in waiting:
            if self._give(each.peer, each.get):
                continue
            if time.monotonic() < each.until_s:
                self._waiting.append(each)
            else:
                self._say(each.peer, Gone(each.get.number))

    def _give(self, name: bytes, get: Get) -> bool:
        """Send a block, or say where it lies; False where there is none."""
        held = self._lender.lend(get.key)
        if held is None:
            return False
        buffer, seal = held
        if self._introduction:
            self._say(name, Here(get.number, seal, buffer.ctypes.data))
            self._lender.give_back(buffer)
            return True
        self._socket.send_multipart([name, _encode(Here(get.number, seal))], zmq.SNDMORE)
        tracker = self._socket.send(buffer.data, copy=False, track=True)
        self._sending.append((tracker, buffer))
        return True

    def _take_back(self) -> None:
        """Give back what was sent."""
        sending = self._sending
        self._sending = []
        for tracker, buffer in sending:
            if tracker.done:
                self._lender.give_back(buffer)
            else:
                self._sending.append((tracker, buffer))

    def _say(self, name: bytes, message: FromServer) -> None:
        self._socket.send_multipart([name, _encode(message)])
