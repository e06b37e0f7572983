"""Listening sockets of the server: a port or a Unix socket, with or without TLS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.servers.http.connections import SEND_BUFFER_BYTES
from builtin_plugins.servers.parent import Parent, ServerParent
from core.api import ConfigError
from core.api.config import check_option_file

BACKLOG: Final = 2048
DEFAULT_CIPHERS: Final = "TLSv1"
"""uvicorn's default: OpenSSL's own list."""
LISTENER: Final = "listener"
"""Name of the listening socket at the parent process."""


def listen(options: Mapping[str, Any]) -> socket.socket:
    """Return a socket that listens. Raises `ConfigError` when it cannot."""
    path = options.get("uds")
    if path:
        listener = _listen_at(path)
    else:
        listener = _listen_on(options.get("host") or "127.0.0.1", options.get("port", 8000))
    # each connection inherits it
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return listener


def preserve_listener(
    listener: socket.socket, parent: ServerParent | None, options: Mapping[str, Any]
) -> None:
    """Preserve the socket, and a Unix socket's file, beyond this process.

    The listener of an API server is preserved already.
    """
    if isinstance(parent, Parent) and not parent.restarts:
        paths = [os.path.abspath(options["uds"])] if options.get("uds") else []
        parent.preserve(LISTENER, descriptors=[listener.fileno()], paths=paths)


def preserved_listener(parent: ServerParent | None) -> socket.socket | None:
    """Return the socket preserved from before a restart, or None."""
    preserved = parent.preserved(LISTENER) if parent is not None else None
    return None if preserved is None else socket.socket(fileno=os.dup(preserved.descriptors[0]))


def close(listener: socket.socket, options: Mapping[str, Any]) -> None:
    """Stop listening, and remove a Unix socket's file."""
    listener.close()
    if options.get("uds"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(options["uds"])


def url_of(listener: socket.socket, options: Mapping[str, Any]) -> str:
    """Return the URL of the server."""
    if options.get("uds"):
        return f"unix:{options['uds']}"
    host = options.get("host") or "127.0.0.1"
    url_host = f"[{host}]" if ":" in host else host
    scheme = "https" if options.get("ssl_certfile") else "http"
    return f"{scheme}://{url_host}:{listener.getsockname()[1]}{options.get('root_path') or ''}"


def check_tls(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for conflicting TLS options, and for unusable files."""
    certificate, key, authorities = (
        options.get(f"ssl_{name}") for name in ("certfile", "keyfile", "ca_certs")
    )
    demand = options.get("ssl_cert_reqs", 0)
    if not certificate:
        others = options.get("ssl_ciphers") or options.get("enable_ssl_refresh")
        if key or authorities or demand or others:
            raise ConfigError(
                "TLS needs a certificate: give --ssl-certfile, or remove the other --ssl options."
            )
        return
    if demand not in (0, 1, 2):
        raise ConfigError(
            f"--ssl-cert-reqs {demand} does not exist; 0: none, 1: optional, 2: required."
        )
    if demand and not authorities:
        raise ConfigError(
            f"--ssl-cert-reqs {demand} requires client certificates; name the authorities with "
            "--ssl-ca-certs."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, options)
    set_ciphers(context, options)


def set_ciphers(context: ssl.SSLContext, options: Mapping[str, Any]) -> None:
    """Set the cipher suites of TLS 1.2. Raises `ConfigError` if OpenSSL has none of them."""
    ciphers = options.get("ssl_ciphers") or DEFAULT_CIPHERS
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError as error:
        raise ConfigError(
            f"--ssl-ciphers: got {ciphers!r}; expected cipher suites of OpenSSL "
            "(`openssl ciphers` lists them). Correct it."
        ) from error


def load_certificate(context: ssl.SSLContext, options: Mapping[str, Any]) -> None:
    """Read certificate, key and authorities; call it again after a change."""
    certificate = options["ssl_certfile"]
    key = options.get("ssl_keyfile") or None
    for name in ("certfile", "keyfile", "ca_certs"):
        if options.get(f"ssl_{name}"):
            check_option_file(f"--ssl-{name}".replace("_", "-"), options[f"ssl_{name}"])
    try:
        context.load_cert_chain(certificate, key)
        if options.get("ssl_ca_certs"):
            context.load_verify_locations(options["ssl_ca_certs"])
    except OSError as error:  # a missing file, or not a certificate
        raise ConfigError(
            f"TLS cannot start with --ssl-certfile {certificate}, --ssl-keyfile {key}, "
            f"--ssl-ca-certs {options.get('ssl_ca_certs')}: {error}."
        ) from error


def tls_files(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the time of the last change of each TLS file."""
    paths = [options.get(f"ssl_{name}") for name in ("certfile", "keyfile", "ca_certs")]
    return {path: os.stat(path).st_mtime for path in paths if path and os.path.exists(path)}


def _listen_on(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} does not exist; use 1 to 65535, or 0 for a free one.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()  # all addresses: those of IPv4, too
    try:
        listener = socket.create_server(
            (host, port), family=family, backlog=BACKLOG, reuse_port=False, dualstack_ipv6=both
        )
        # Each connection inherits it; asyncio sets it only for its own sockets. Without it every
        # second write, such as a body after its head, waits 40 ms or more for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use by another program; stop it or choose another "
                "--port (0 takes a free one)."
            ) from error
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; check --host and --port."
        ) from error


def _listen_at(path: str) -> socket.socket:
    """Listen on a Unix socket; the file of a dead server is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and not _is_served(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except (OSError, ValueError) as error:  # a path with NUL
        listener.close()
        is_used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = "another server listens there" if is_used else str(error)
        raise ConfigError(
            f"cannot listen on --uds {path!r}: {hint}; choose another path."
        ) from error
    return listener


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0
