"""Answers while the process that serves is started again: alive, not ready, come again soon. Knows
no engine.

Runs in a process of its own that imports no web framework: it is up at once, and what is done to it
is done to nobody else.
"""

from __future__ import annotations

import asyncio
import json
import math
import signal
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

KEPT: Final = "listener"
MOST_CONNECTIONS: Final = 512
"""Who comes beyond is closed at once."""
MOST_HEAD_BYTES: Final = 64 * 1024
LINGER_S: Final = 5.0
"""For a client to send what it has begun, which it must before it reads."""
FAREWELL_S: Final = 1.0
"""For answers under way, when the one that serves is back."""


def run(
    options: Mapping[str, Any], descriptors: Mapping[str, Sequence[int]], back_s: float
) -> None:
    """Answer on the kept socket until told to end; `back_s` is when the one that serves is
    expected.
    """
    asyncio.run(_serve(options, descriptors[KEPT][0], back_s))


async def _serve(options: Mapping[str, Any], descriptor: int, back_s: float) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    connections: set[StandIn] = set()
    alive_path = f"{(options.get('root_path') or '').rstrip('/')}/livez"
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    server = await loop.create_server(
        lambda: StandIn(connections, {"/livez", alive_path}, back_s),
        sock=listener,
        ssl=_tls(options),
    )
    await ended.wait()
    server.close()  # ours only: who serves listens as well
    until_s = loop.time() + FAREWELL_S
    while connections and loop.time() < until_s:
        await asyncio.sleep(0.02)


class StandIn(asyncio.Protocol):
    """One connection: a head is read, an answer is written, what else comes is thrown away."""

    def __init__(self, connections: set[StandIn], alive_paths: set[str], back_s: float) -> None:
        self._connections = connections
        self._alive_paths = alive_paths
        self._back_s = back_s
        self._head: bytes | None = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client in, for a while."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._connections) >= MOST_CONNECTIONS:
            self._transport.abort()
        self._connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Answer once the head is whole."""
        if self._head is None:
            return
        self._head += data
        if b"\r\n\r\n" in self._head or len(self._head) > MOST_HEAD_BYTES:
            line = self._head.split(b"\r\n", 1)[0].split(b" ")
            path = line[1].split(b"?")[0].decode("latin-1") if len(line) > 1 else ""
            self._head = None
            self._transport.write(
                answer(path in self._alive_paths, self._back_s - time.monotonic())
            )
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the client."""
        self._connections.discard(self)
        self._timer.cancel()


def answer(asks_whether_alive: bool, wait_s: float) -> bytes:
    """Return what a client is told: that all is well with the probe it asks, or when to come again."""
    status, body, fields = "200 OK", dict[str, Any](status="alive"), dict[str, str]()
    if not asks_whether_alive:
        retry = str(math.ceil(max(1.0, min(60.0, wait_s))))
        message = "the server's API process is being started again; send the request again."
        error: Any = {
            "message": message,
            "type": "server_error",
            "param": None,
            "code": "restarting",
        }
        status, body, fields = (
            "503 Service Unavailable",
            {"status": "restarting", "error": error},
            {"retry-after": retry},
        )
    text = json.dumps(body, separators=(",", ":")).encode()
    fields |= {
        "content-type": "application/json",
        "content-length": str(len(text)),
        "connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + text


def _tls(options: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return how TLS is spoken, as the one that serves does."""
    if not options.get("ssl_certfile"):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile") or None)
    if options.get("ssl_ca_certs"):
        context.load_verify_locations(options["ssl_ca_certs"])
    context.verify_mode = ssl.VerifyMode(options.get("ssl_cert_reqs") or 0)
    return context
