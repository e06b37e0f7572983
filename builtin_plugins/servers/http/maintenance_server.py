"""Placeholder server during a restart of the API process: alive, not ready, retry later.

It runs in its own process without a web framework, so it starts at once.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

LISTENER: Final = "listener"
MAX_CONNECTIONS: Final = 512
"""Largest number of connections; further ones are closed at once."""
MAX_HEAD_BYTES: Final = 64 * 1024
CONNECTION_S: Final = 5.0
"""Longest life of a connection, in seconds: clients send their request before they read."""
SHUTDOWN_S: Final = 1.0
"""Timeout of pending answers after the restart, in seconds."""


def run(
    options: Mapping[str, Any], descriptors: Mapping[str, Sequence[int]], back_s: float
) -> None:
    """Answer on the preserved socket until SIGTERM; `back_s` is the expected end of the restart."""
    asyncio.run(_serve(options, descriptors[LISTENER][0], back_s))


async def _serve(options: Mapping[str, Any], descriptor: int, back_s: float) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    connections: set[MaintenanceConnection] = set()
    alive_path = f"{(options.get('root_path') or '').rstrip('/')}/livez"
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    server = await loop.create_server(
        lambda: MaintenanceConnection(connections, {"/livez", alive_path}, back_s),
        sock=listener,
        ssl=_tls(options),
    )
    await ended.wait()
    server.close()  # only this one; the API process listens too
    until_s = loop.time() + SHUTDOWN_S
    while connections and loop.time() < until_s:
        await asyncio.sleep(0.02)


class MaintenanceConnection(asyncio.Protocol):
    """One connection: reads a head, writes an answer, ignores everything else."""

    def __init__(
        self, connections: set[MaintenanceConnection], alive_paths: set[str], back_s: float
    ) -> None:
        self._connections = connections
        self._alive_paths = alive_paths
        self._back_s = back_s
        self._head: bytes | None = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client, for a limited time."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._connections) >= MAX_CONNECTIONS:
            self._transport.abort()
        self._connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(CONNECTION_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Answer once the head is complete."""
        if self._head is None:
            return
        self._head += data
        if b"\r\n\r\n" in self._head or len(self._head) > MAX_HEAD_BYTES:
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
        """Remove the connection."""
        self._connections.discard(self)
        self._timer.cancel()


def answer(is_liveness_probe: bool, wait_s: float) -> bytes:
    """Return a 200 for a liveness probe, otherwise a 503 with the time to retry."""
    status = "200 OK"
    body: dict[str, Any] = {"status": "alive"}
    fields: dict[str, str] = {}
    if not is_liveness_probe:
        retry = str(math.ceil(max(1.0, min(60.0, wait_s))))
        message = "the server's API process is restarting; send the request again."
        error: Any = {
            "message": message,
            "type": "server_error",
            "param": None,
            "code": "restarting",
        }
        status = "503 Service Unavailable"
        body = {"status": "restarting", "error": error}
        fields = {"retry-after": retry}
    text = json.dumps(body, separators=(",", ":")).encode()
    fields |= {
        "content-type": "application/json",
        "content-length": str(len(text)),
        "connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + text


def _tls(options: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return the API process's TLS settings, or None without TLS."""
    if not options.get("ssl_certfile"):
        return None
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        if options.get(name) and not os.path.isfile(options[name]):  # opening a FIFO would wait
            raise OSError(f"{name}: got {options[name]}; expected a regular file. Restore it.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile") or None)
    if options.get("ssl_ca_certs"):
        context.load_verify_locations(options["ssl_ca_certs"])
    context.verify_mode = ssl.VerifyMode(options.get("ssl_cert_reqs") or 0)
    if options.get("ssl_ciphers"):
        context.set_ciphers(options["ssl_ciphers"])
    return context
