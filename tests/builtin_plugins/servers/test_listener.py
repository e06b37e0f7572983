"""Socket options that connections inherit from the listening socket."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from builtin_plugins.servers.http.sockets import listen, url_of
from core.api import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_accepted_connections_inherit_tcp_nodelay(host: str) -> None:
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


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_all_addresses_are_those_of_both_protocols(address: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no socket for both protocols here")
    try:
        listener = listen({"host": "::", "port": 0})
    except ConfigError:
        pytest.skip("no IPv6 here")
    with listener, socket.create_connection((address, listener.getsockname()[1])):
        accepted, _ = listener.accept()
        accepted.close()
