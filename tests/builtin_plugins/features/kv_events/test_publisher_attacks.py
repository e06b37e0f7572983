"""Ports of KV events: bytes that are no ZeroMQ peer's do no harm, large frames are refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.features.kv_events.events import EventEncoder, Stored
from builtin_plugins.features.kv_events.publisher import END, MAX_REQUEST_BYTES, Publisher
from builtin_plugins.features.kv_events.settings import Settings
from core.kv import plan_layout
from core.model_spec.kv import FullAttention, LayerKV
from tests.timeouts import TIMEOUT_S
from tests.zmtp import GREETING, NULL, OVERSIZED, deliver, ready, send_raw

HOST = "127.0.0.1"
LAYOUT = plan_layout(
    [LayerKV("a", FullAttention(1, 8, "float32"))],
    block_size=4,
    memory_bytes=0,
    num_blocks=8,
    max_model_len=8,
    max_num_seqs=1,
)


class Ports:
    """A publisher, and the ports of its two sockets."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.events = port_of(publisher._events)
        self.replay = port_of(publisher._replay)
        self._num_sent = 0

    def assert_works(self) -> None:
        """Publish one more batch; it is the last one of a replay."""
        self._num_sent += 1
        key = self._num_sent.to_bytes(32, "big")
        self.publisher.send(Stored("GPU", 0, [key], None, [1, 2, 3, 4]))
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(f"tcp://{HOST}:{self.replay}")
            numbers: list[int] = []
            while len(numbers) < self._num_sent:  # until it is published
                client.send_multipart((b"", bytes(8)))
                numbers = []
                while True:
                    assert client.poll(1000 * TIMEOUT_S), "no answer"
                    _, number, batch = client.recv_multipart()
                    if not batch:
                        assert number == END
                        break
                    numbers.append(int.from_bytes(number, "big"))
            assert numbers == list(range(self._num_sent))


def port_of(opened: Any) -> int:
    address: str = opened.getsockopt_string(zmq.LAST_ENDPOINT)
    return int(address.rstrip("\0").rpartition(":")[2])


@contextmanager
def publishing() -> Iterator[Ports]:
    given = {"endpoint": "tcp://*:0", "replay_endpoint": f"tcp://{HOST}:0"}
    publisher = Publisher(msgspec.convert({"enable_kv_cache_events": True, **given}, Settings))
    publisher.start(EventEncoder(LAYOUT, as_bytes=True).events)
    try:
        yield Ports(publisher)
    finally:
        publisher.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Ports]:
    """Return ports for all examples of a property; they work after them."""
    with publishing() as ports:
        yield ports
        ports.assert_works()


@pytest.mark.parametrize("port", ["events", "replay"])
@pytest.mark.parametrize(
    "attack",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        GREETING + NULL + b"\x04\x05\x05READY",
        ready("DEALER") + b"\x02" + OVERSIZED + bytes(1000),
        ready("PUSH") + b"\x00\x08" + bytes(8),
        ready("DEALER") + b"\x01\x00" * 1000 + b"\x00\x08" + bytes(8),
    ],
    ids=["http", "zeros", "cut short", "oversized", "wrong kind", "many frames"],
)
def test_attack_does_no_harm(shared: Ports, port: str, attack: bytes) -> None:
    send_raw(HOST, getattr(shared, port), attack)
    shared.assert_works()


@pytest.mark.parametrize(("port", "kind"), [("events", "SUB"), ("replay", "DEALER")])
def test_peer_with_a_large_frame_is_disconnected(port: str, kind: str) -> None:
    size = MAX_REQUEST_BYTES + 1
    frame = b"\x02" + size.to_bytes(8, "big") + b"\x01" * size
    with publishing() as ports:
        with socket.create_connection((HOST, getattr(ports, port)), timeout=TIMEOUT_S) as raw:
            deliver(raw, ready(kind) + frame)
            try:
                while raw.recv(4096):
                    pass
            except ConnectionError:
                pass
        ports.assert_works()


@given(st.binary(max_size=300), st.sampled_from([b"", GREETING, GREETING + NULL, ready("DEALER")]))
@settings(max_examples=20, deadline=None)
def test_random_bytes_do_no_harm(shared: Ports, noise: bytes, start: bytes) -> None:
    for port in (shared.events, shared.replay):
        with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as raw:
            deliver(raw, start + noise)
