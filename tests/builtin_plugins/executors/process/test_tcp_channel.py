"""Channels over TCP: only their own child is heard, whatever else reaches the port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.executors.process import tcp_channel
from builtin_plugins.executors.process.messages import Heartbeat
from builtin_plugins.executors.process.tcp_channel import (
    Credentials,
    Hello,
    TcpChannel,
    TcpListener,
    own_address,
)
from core.errors import ConfigError, EngineError
from tests.timeouts import TIMEOUT_S
from tests.zmtp import GREETING, NULL, OVERSIZED, deliver, recorder, send_raw

HOST = "127.0.0.2"
KINDS = Heartbeat | Hello
CURVE = b"CURVE".ljust(20, b"\0")
OVERSIZED_COMMAND = b"\x06" + OVERSIZED


@contextmanager
def listening() -> Iterator[tuple[TcpListener, TcpChannel, Credentials]]:
    listener = TcpListener(HOST)
    channel, credentials = listener.listen(KINDS)
    try:
        yield listener, channel, credentials
    finally:
        channel.close()
        listener.close()


@contextmanager
def connected(
    credentials: Credentials, on_loss: Callable[[], None] = lambda: None
) -> Iterator[TcpChannel]:
    child = TcpChannel.connect_to(credentials, KINDS, on_loss)
    try:
        yield child
    finally:
        child.close()


Shared = tuple[TcpChannel, Credentials]


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """Return a channel for all examples of a property; it works after them."""
    with listening() as (_, channel, credentials):
        yield channel, credentials
        assert_works(channel, credentials)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def receive(channel: TcpChannel) -> Any:
    message = channel.receive(TIMEOUT_S)
    assert message is not None
    return message


def assert_works(channel: TcpChannel, credentials: Credentials) -> None:
    """Assert that the right child is connected, and that its messages are the first to arrive."""
    with connected(credentials) as child:
        child.send(Hello(7, HOST))
        assert receive(channel) == Hello(7, HOST)
        channel.on_connected()
        channel.send(Heartbeat(1.0))
        assert receive(child) == Heartbeat(1.0)


def test_messages_before_the_connection_arrive_in_order() -> None:
    with listening() as (_, channel, credentials):
        for number in range(100):
            channel.send(Heartbeat(number))
        with connected(credentials) as child:
            child.send(Hello(1, HOST))
            assert receive(channel) == Hello(1, HOST)
            channel.on_connected()
            channel.send(Heartbeat(100))
            assert [receive(child).busy_s for _ in range(101)] == list(range(101))


def test_parent_does_not_wait_for_a_child_that_has_left() -> None:
    with listening() as (_, channel, credentials):
        assert_works(channel, credentials)
        until_s = time.monotonic() + TIMEOUT_S
        while not channel._lost:
            channel.send(Heartbeat())
            assert time.monotonic() < until_s
        channel.send(Heartbeat())


def test_child_notices_the_end_of_its_parent() -> None:
    lost = threading.Event()
    listener = TcpListener(HOST)
    channel, credentials = listener.listen(KINDS)
    child = TcpChannel.connect_to(credentials, KINDS, lost.set)
    child.send(Hello(1, HOST))
    receive(channel)
    channel.close()
    listener.close()
    assert lost.wait(TIMEOUT_S)
    child.close()


def test_large_message_is_refused_where_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_channel, "MAX_MESSAGE_BYTES", 1000)
    with (
        listening() as (_, channel, _),
        pytest.raises(EngineError, match="got 1001 bytes; expected at most 1000"),
    ):
        channel.send(bytes(1001))


def test_events_after_a_loss_block_no_other_channel() -> None:
    """ZeroMQ's thread waits for the reader of each event, and all sockets wait for the thread."""
    with listening() as (listener, channel, credentials):
        lost = threading.Event()
        parent, theirs = listener.listen(KINDS)
        with connected(theirs, lost.set) as child:
            child.send(Hello(1, HOST))
            receive(parent)
            parent.close()
            assert lost.wait(TIMEOUT_S)
            assert child._lifeline is not None
            child._lifeline.join()
            for _ in range(5):
                child._in.connect(theirs.down)  # nothing listens there: another event
                assert child._in.poll(20) == 0
            assert_works(channel, credentials)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "0.0.0.0"])
def test_address_of_no_interface_is_refused_by_name(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--ray-host: got {host}; expected"):
        TcpListener(host, "--ray-host")
    assert own_address("localhost") in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    "attack",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        GREETING + NULL + b"\x04\x05\x05READY",
        GREETING + CURVE + bytes(32) + OVERSIZED_COMMAND + bytes(1000),
        GREETING + CURVE + bytes(32) + b"\x04\xc8\x05HELLO\x01\x00" + bytes(192),
    ],
    ids=["http", "zeros", "no encryption", "oversized", "empty keys"],
)
def test_attack_without_keys_is_refused(attack: bytes) -> None:
    with listening() as (_, channel, credentials):
        for address in (credentials.up, credentials.down):
            send_raw(HOST, port_of(address), attack)
        assert channel.receive(0.1) is None
        assert_works(channel, credentials)


@given(st.binary(max_size=300), st.sampled_from([b"", GREETING, GREETING + CURVE + bytes(32)]))
@settings(max_examples=25, deadline=None)
def test_random_bytes_are_refused(shared: Shared, noise: bytes, start: bytes) -> None:
    channel, credentials = shared
    with socket.create_connection((HOST, port_of(credentials.up)), timeout=TIMEOUT_S) as raw:
        deliver(raw, start + noise)
    assert channel.receive(0) is None


@pytest.mark.parametrize("wrong", ["parent_key", "client key", "another channel's"])
def test_client_with_wrong_keys_is_refused(wrong: str) -> None:
    with listening() as (listener, channel, credentials):
        public, secret = (key.decode() for key in zmq.curve_keypair())
        if wrong == "parent_key":
            bad = msgspec.structs.replace(credentials, parent_key=public)
        elif wrong == "client key":
            bad = msgspec.structs.replace(credentials, public_key=public, secret_key=secret)
        else:
            other, theirs = listener.listen(KINDS)
            other.close()
            bad = msgspec.structs.replace(theirs, up=credentials.up, down=credentials.down)
        refused = threading.Event()
        with connected(bad, refused.set) as intruder:
            intruder.send(Heartbeat(666.0))
            assert refused.wait(TIMEOUT_S)
            assert channel.receive(0.1) is None
        assert_works(channel, credentials)


def test_replayed_bytes_deliver_nothing() -> None:
    with (
        listening() as (_, channel, credentials),
        recorder(HOST, port_of(credentials.up)) as recorded,
    ):
        up = f"tcp://{HOST}:{recorded.port}"
        with connected(msgspec.structs.replace(credentials, up=up)) as child:
            child.send(Hello(1, HOST))
            assert receive(channel) == Hello(1, HOST)
            child.send(Heartbeat(5.0))
            assert receive(channel) == Heartbeat(5.0)
        assert len(recorded.data) > 300
        send_raw(HOST, port_of(credentials.up), bytes(recorded.data))
        assert channel.receive(0.1) is None
        with connected(credentials) as child:
            child.send(Heartbeat(6.0))
            assert receive(channel) == Heartbeat(6.0)
