"""Channels between processes of several hosts: two ZeroMQ sockets over TCP, with CurveZMQ.

Every channel has keys of its own. The parent accepts one client key, and the child one server key;
both reach the child with its start, never on a command line. Everything else is refused before a
message of it is read.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Self

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from builtin_plugins.executors.process.channel import Channel
from core.api import ConfigError, EngineError

MAX_MESSAGE_BYTES: Final = 1 << 28
"""Largest message; a peer that announces more is disconnected before memory is allocated."""
HANDSHAKE_MS: Final = 10_000
"""Time for a peer to authenticate."""
RETRY_MS: Final = 10
"""Interval of attempts to send."""
HEARTBEAT_MS: Final = 5_000
LOST_MS: Final = 60_000
"""Time without a sign of life after which a connection counts as lost."""
LOST_EVENTS: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Events of a client's socket after which no message arrives."""
WATCH_MS: Final = 100
"""Interval at which a child's watching thread looks whether its channel was closed."""
ATTACH_S: Final = 30.0
"""Time between the first and the second connection of a child."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """How a child connects to its parent. Secret: they prove that a peer is the child."""

    up: str
    """Address of the parent's receiving socket."""
    down: str
    """Address of the parent's sending socket."""
    parent_key: str
    """The parent's public key."""
    public_key: str
    """The child's public key."""
    secret_key: str
    """The child's secret key."""
    host: str = ""
    """The child's own address for other ranks."""

    def __repr__(self) -> str:
        return f"Credentials({self.up}, {self.down})"


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A child's first message over TCP."""

    pid: int
    host: str


class StageBegun(msgspec.Struct, frozen=True, tag=True):
    """A child enters a start-up stage."""

    name: str


def own_address(host: str, field: str = "host") -> str:
    """Return the IP address of a name or address of this host.

    Raises `ConfigError` if it is none of this host's, or stands for all of them.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"{field}: got {host}; expected an address that an interface of this host has "
            f"({error.strerror}). See `ip address`."
        ) from error
    if address[0] in ("0.0.0.0", "::"):
        raise ConfigError(f"{field}: got {host}; expected one address, not all. See `ip address`.")
    return str(address[0])


class TcpListener:
    """The parent's side of all its channels over TCP, on one address."""

    def __init__(self, host: str, field: str = "host") -> None:
        """Raises `ConfigError`, naming `field`, for an address that this host does not have."""
        self.host: Final = own_address(host, field)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._numbers = count()

    def listen(self, kinds: Any) -> tuple[TcpChannel, Credentials]:
        """Return the parent's end of a new channel, and what the child needs for the other.

        `kinds` is the union of messages that the child sends.
        """
        parent_public, parent_secret = zmq.curve_keypair()
        public, secret = zmq.curve_keypair()
        outgoing = self.bind(zmq.PUSH, parent_secret, public)
        incoming = self.bind(zmq.PULL, parent_secret, public)
        outgoing.set_hwm(0)  # a parent never blocks in `send`
        outgoing.sndtimeo = RETRY_MS
        credentials = Credentials(
            up=_bound(incoming),
            down=_bound(outgoing),
            parent_key=parent_public.decode(),
            public_key=public.decode(),
            secret_key=secret.decode(),
        )
        return TcpChannel(outgoing, incoming, kinds, is_parent=True), credentials

    def bind(
        self, kind: int, secret_key: bytes, client_key: bytes, port: int | None = None
    ) -> zmq.Socket[bytes]:
        """Return a socket that accepts clients with one public key; default: any free port.

        Raises `zmq.ZMQError` for a port in use.
        """
        bound = self._context.socket(kind)
        _limit(bound)
        domain = f"socket {next(self._numbers)}"
        self._authenticator.configure_curve_callback(domain, _OneKey(client_key))
        bound.zap_domain = domain.encode()
        bound.curve_server = True
        bound.curve_secretkey = secret_key
        bound.ipv6 = ":" in self.host
        host = f"[{self.host}]" if bound.ipv6 else self.host
        try:
            bound.bind(f"tcp://{host}:{'*' if port is None else port}")
        except zmq.ZMQError:
            bound.close(0)
            raise
        return bound

    def close(self) -> None:
        """Stop listening; channels were closed before. May be called twice."""
        if self._context.closed:
            return
        self._authenticator.stop()
        self._context.destroy(linger=1000)


class _OneKey:
    """Accepts one client key; the interface is that of pyzmq's authenticator."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client may connect."""
        del domain
        return key == self._key


class TcpChannel(Channel):
    """A channel over TCP."""

    def __init__(
        self,
        outgoing: zmq.Socket[bytes],
        incoming: zmq.Socket[bytes],
        kinds: Any,
        *,
        is_parent: bool,
    ) -> None:
        super().__init__(outgoing, incoming, "", kinds)
        self._is_parent = is_parent
        self._waiting: list[bytes] | None = [] if is_parent else None
        """A parent's messages until its child has connected; None from then on."""
        self._is_attached = False
        self._lost = False
        self._lifeline: threading.Thread | None = None
        self._monitor: zmq.Socket[bytes] | None = None

    @classmethod
    def connect_to(cls, credentials: Credentials, kinds: Any, on_loss: Callable[[], None]) -> Self:
        """Return the child's end.

        `on_loss` is called in a thread when the connection ends or the parent refuses it.
        """
        keys = (credentials.parent_key, credentials.public_key, credentials.secret_key)
        is_ipv6 = "[" in credentials.up
        outgoing, incoming = (
            client_socket(kind, *(key.encode() for key in keys), ipv6=is_ipv6)
            for kind in (zmq.PUSH, zmq.PULL)
        )
        outgoing.sndtimeo = RETRY_MS
        channel = cls(outgoing, incoming, kinds, is_parent=False)
        channel._watch(incoming.get_monitor_socket(LOST_EVENTS), on_loss)
        outgoing.connect(credentials.up)
        incoming.connect(credentials.down)
        return channel

    def _watch(self, monitor: zmq.Socket[bytes], on_loss: Callable[[], None]) -> None:
        def watch() -> None:
            with contextlib.suppress(zmq.ZMQError):
                while not self._closed:
                    if monitor.poll(WATCH_MS) and not self._closed:
                        self._lost = True
                        on_loss()
                        return

        self._monitor = monitor
        self._lifeline = threading.Thread(target=watch, name="lifeline", daemon=True)
        self._lifeline.start()

    def close(self) -> None:
        """Close both sockets; sent messages have a second to arrive. May be called twice."""
        super().close()
        # No other thread may use a socket when the context is destroyed.
        if self._lifeline is not None and self._lifeline is not threading.current_thread():
            self._lifeline.join()
        if self._monitor is not None:
            self._monitor.close(0)

    def _close_sockets(self) -> None:
        # Later events would find no reader. ZeroMQ's thread waits for one, and all sockets for it.
        if self._monitor is not None:
            self._in.disable_monitor()
        super()._close_sockets()

    def send(self, message: Any) -> None:
        """Send a struct, or an encoded one as bytes; does nothing after `close`.

        A parent does not wait for its child. Raises `EngineError` for a message that is too large.
        """
        data = message if isinstance(message, bytes) else self._encoder.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise EngineError(
                f"message: got {len(data)} bytes; expected at most {MAX_MESSAGE_BYTES}. "
                "Run the ranks on this machine, or send shorter prompts."
            )
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(data)
            elif not self._closed:
                self._send_now(data)

    def on_connected(self) -> None:
        """Send what has waited for the child; called by its parent after `Hello`."""
        with self._lock:
            waiting = self._waiting or []
            self._waiting = None
            for data in waiting:
                self._send_now(data)

    def _send_now(self, data: bytes) -> None:
        """Send unless the other side has left; a parent learns its child's end by other means."""
        until_s = time.monotonic() + (0.0 if self._is_attached else ATTACH_S)
        while not self._lost and not self._closed:
            try:
                self._out.send(data)
                self._is_attached = True
                return
            except zmq.Again:
                if self._is_parent:
                    self._lost = time.monotonic() >= until_s

    def hide(self) -> None:
        """Do nothing: there is no folder."""


def client_socket(
    kind: int, server_key: bytes, public_key: bytes, secret_key: bytes, *, ipv6: bool
) -> zmq.Socket[bytes]:
    """Return a socket that connects once, to a server with this public key."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    made = context.socket(kind)
    _limit(made)
    made.reconnect_ivl = -1  # messages may be lost with a connection
    made.curve_serverkey = server_key
    made.curve_publickey = public_key
    made.curve_secretkey = secret_key
    made.ipv6 = ipv6
    return made


def _limit(each: zmq.Socket[bytes]) -> None:
    """Set the limits of one socket."""
    each.maxmsgsize = MAX_MESSAGE_BYTES
    each.handshake_ivl = HANDSHAKE_MS
    each.heartbeat_ivl = HEARTBEAT_MS
    each.heartbeat_timeout = LOST_MS


def _bound(each: zmq.Socket[bytes]) -> str:
    """Return the address that a socket is bound to."""
    return each.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
