"""What connections inherit from the socket that the server listens on."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from builtin_plugins.servers.http.sockets import listen, url_of
from core.api import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_written_to_a_client_waits_for_no_acknowledgement(host: str) -> None:
    options: dict[str, Any] = {"host": host, "port": 0}
    try:
        listener = listen(options)
    except ConfigError:
        pytest.skip("no IPv6 here")
    with listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert url_of(listener, options).startswith("http://")
