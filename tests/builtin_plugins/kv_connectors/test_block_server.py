"""Block server and client without engines: authentication, timeouts and broken connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from builtin_plugins.kv_connectors.api import BlockKey, StoreParts
from builtin_plugins.kv_connectors.conformance import LAYOUT
from builtin_plugins.kv_connectors.offload import HostMemory
from builtin_plugins.kv_connectors.tcp import server
from builtin_plugins.kv_connectors.tcp.client import Connection
from builtin_plugins.kv_connectors.tcp.protocol import (
    VERSION,
    Challenge,
    FromServer,
    Get,
    Hello,
    Join,
    PeerError,
    Refused,
    proof,
)
from builtin_plugins.kv_connectors.tcp.server import BlockServer
from builtin_plugins.kv_connectors.tcp.store import ServedMemory, TcpStore
from tests.builtin_plugins.kv_connectors.small_engines import free_port
from tests.timeouts import TIMEOUT_S
from tests.zmtp import GREETING, NULL, OVERSIZED, deliver, ready, recorder, send_raw

TOKEN = b"a token of the tests"
OTHER = b"another token"
KEY = BlockKey(0, b"k" * 32)
SIZE = LAYOUT.pools[0].block_bytes
PARTS = StoreParts(
    LAYOUT, 0, 1, "0" * 64, [pool.block_bytes for pool in LAYOUT.pools], {"dtype": "float32"}
)


def block(number: int = 3) -> list[Any]:
    return [np.full(SIZE, number, np.uint8)]


@contextmanager
def serving(memory: HostMemory | None = None) -> Iterator[str]:
    address = f"tcp://127.0.0.1:{free_port()}"
    source: Any = memory or ServedMemory(PARTS)
    server = BlockServer(address, TOKEN, '{"dtype": "float32"}', source)
    try:
        yield address
    finally:
        server.close()


@pytest.fixture
def context() -> Iterator[Any]:
    with zmq.Context() as made:
        yield made


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def connect(
    context: Any, address: str, token: bytes = TOKEN, timeout_s: float = TIMEOUT_S, **facts: str
) -> Connection:
    return Connection(
        context,
        address,
        token,
        {"dtype": "float32", **facts},
        max_block_bytes=SIZE,
        timeout_s=timeout_s,
    )


def test_get_waits_for_a_block_being_copied(context: Any) -> None:
    memory = ServedMemory(PARTS)
    with serving(memory) as address:
        connection = connect(context, address)
        assert connection.get(KEY, SIZE, waits=False) is None
        later = threading.Timer(0.05, memory.write, (KEY, block(), b"checksum"))
        later.start()
        while (stored := connection.get(KEY, SIZE, waits=True)) is None:
            assert later.is_alive() or not memory._held
        assert (stored[0].tolist(), stored[1]) == ([3] * SIZE, b"checksum")
        later.join()
        connection.close()


def test_acquired_buffer_is_not_reused() -> None:
    memory = ServedMemory(PARTS)
    memory.write(KEY, block(), b"checksum")
    stored = memory.acquire(KEY)
    assert stored is not None
    memory.drop(KEY)
    memory.write(BlockKey(0, b"l" * 32), block(5), b"checksum")
    assert set(stored[0].tolist()) == {3}
    memory.release(stored[0])
    memory.drop(BlockKey(0, b"l" * 32))
    assert len(memory._free[SIZE]) == 1


@pytest.mark.parametrize(
    ("differences", "named"),
    [
        ({"token": OTHER}, "has another token"),
        ({"dtype": "bfloat16"}, "dtype is float32 there and bfloat16 here"),
        ({"layout": "another"}, "layout is None there"),
    ],
)
def test_handshake_reports_differences(
    context: Any, differences: dict[str, Any], named: str
) -> None:
    with serving() as address, pytest.raises(PeerError, match=named):
        connect(context, address, **differences)


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"x" * 100, msgspec.msgpack.encode(Get(1, KEY, False))]
)
def test_peers_without_the_token_get_no_blocks(context: Any, message: bytes) -> None:
    memory = ServedMemory(PARTS)
    memory.write(KEY, block(), b"checksum")
    with serving(memory) as address:
        with context.socket(zmq.DEALER) as stranger:
            stranger.connect(address)
            stranger.send(message)
            assert isinstance(msgspec.msgpack.decode(stranger.recv(), type=FromServer), Refused)
            stranger.send(msgspec.msgpack.encode(Hello(VERSION, b"n" * 32)))
            challenge = msgspec.msgpack.decode(stranger.recv(), type=Challenge)
            for wrong in (proof(OTHER, "client", b"n" * 32, challenge.nonce), challenge.proof, b""):
                stranger.send(msgspec.msgpack.encode(Join(wrong)))
                assert (
                    msgspec.msgpack.decode(stranger.recv(), type=Refused).reason
                    == "the token is another one"
                )
            stranger.send(msgspec.msgpack.encode(Get(1, KEY, False)))
            assert isinstance(msgspec.msgpack.decode(stranger.recv(), type=FromServer), Refused)
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.send(b"x" * (2 << 20))  # over the size limit: the server disconnects it
        connection = connect(context, address)
        stored = connection.get(KEY, SIZE, waits=False)
        assert stored is not None
        assert stored[1] == b"checksum"
        with pytest.raises(PeerError, match="a block of another size"):
            connection.get(KEY, SIZE + 1, waits=False)
        connection.close()


@pytest.mark.parametrize(
    "attack",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        GREETING + NULL + b"\x04\x05\x05READY",
        ready("DEALER") + b"\x02" + OVERSIZED + bytes(1000),
        ready("DEALER") + b"\x01\x00" * 1000 + b"\x00\x01\xc0",
        ready("DEALER") + b"\x00\x02\x81\xa0",
    ],
    ids=["http", "zeros", "cut short", "oversized", "many frames", "no message"],
)
def test_attack_on_the_port_gets_no_block_and_does_no_harm(context: Any, attack: bytes) -> None:
    memory = ServedMemory(PARTS)
    memory.write(KEY, block(), b"checksum")
    with serving(memory) as address:
        answer = send_raw("127.0.0.1", port_of(address), attack)
        assert bytes([3]) * 16 not in answer
        connection = connect(context, address)
        assert connection.get(KEY, SIZE, waits=False) is not None
        connection.close()


def test_replayed_session_gets_no_block(context: Any) -> None:
    memory = ServedMemory(PARTS)
    memory.write(KEY, block(), b"checksum")
    with serving(memory) as address:
        with recorder("127.0.0.1", port_of(address)) as recorded:
            connection = connect(context, f"tcp://127.0.0.1:{recorded.port}")
            assert connection.get(KEY, SIZE, waits=False) is not None
            connection.close()
        assert KEY.key in recorded.data
        last = b"the handshake is incomplete"
        answer = send_raw("127.0.0.1", port_of(address), bytes(recorded.data), last)
        assert b"the token is another one" in answer
        assert last in answer
        assert bytes([3]) * 16 not in answer


def test_replayed_challenge_is_refused_by_the_client(context: Any) -> None:
    old = Challenge(b"n" * 32, proof(TOKEN, "server", b"h" * 32, b"n" * 32))
    with context.socket(zmq.ROUTER) as false:
        port = false.bind_to_random_port("tcp://127.0.0.1")

        def answer() -> None:
            peer, _ = false.recv_multipart()
            false.send_multipart([peer, msgspec.msgpack.encode(old)])

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PeerError, match="has another token"):
            connect(context, f"tcp://127.0.0.1:{port}")
        thread.join()


@pytest.mark.parametrize(
    "attack",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        ready("ROUTER") + b"\x02" + OVERSIZED + bytes(1000),
        ready("ROUTER") + b"\x00\x02\x81\xa0",
    ],
    ids=["http", "oversized", "no message"],
)
def test_client_gives_up_a_peer_that_is_no_engine(context: Any, attack: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:

        def answer() -> None:
            raw, _ = false.accept()
            with raw:
                deliver(raw, attack)
                with suppress(OSError):
                    while raw.recv(4096):
                        pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PeerError):
            connect(context, f"tcp://127.0.0.1:{false.getsockname()[1]}", timeout_s=0.5)
        thread.join()


def test_peers_without_the_token_do_not_evict_those_with_it(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_PEERS", 3)
    memory = ServedMemory(PARTS)
    memory.write(KEY, block(), b"checksum")
    with serving(memory) as address:
        connection = connect(context, address)
        strangers = [context.socket(zmq.DEALER) for _ in range(5)]
        for stranger in strangers:
            stranger.connect(address)
            stranger.send(msgspec.msgpack.encode(Hello(VERSION, b"n" * 32)))
            assert msgspec.msgpack.decode(stranger.recv(), type=Challenge)
        assert connection.get(KEY, SIZE, waits=False) is not None
        for stranger in strangers:
            stranger.close(0)
        connection.close()


def test_silent_peer_times_out(context: Any) -> None:
    with context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(PeerError, match=r"does not answer within 0\.2 s"):
            connect(context, f"tcp://127.0.0.1:{port}", timeout_s=0.2)


def test_broken_connection_is_noticed_at_once(context: Any) -> None:
    with serving() as address:
        connection = connect(context, address)
    with pytest.raises(PeerError, match="broke"):
        connection.get(KEY, SIZE, waits=True)
    connection.close()


def test_failed_peer_is_paused_and_retried() -> None:
    port = free_port()
    source = msgspec.msgpack.encode(("id", "127.0.0.1", port))
    reader = TcpStore(PARTS, TOKEN, None, TIMEOUT_S)
    with pytest.raises(PeerError, match="broke"):
        reader.fetch(source, KEY)
    writer = TcpStore(PARTS, TOKEN, f"tcp://127.0.0.1:{port}", TIMEOUT_S)
    writer.write(KEY, block(), b"checksum")
    reader._paused[source] = reader._paused[source][0] + TIMEOUT_S, PeerError("it broke before")
    with pytest.raises(PeerError, match="it broke before"):
        reader.fetch(source, KEY)
    reader._paused[source] = 0.0, PeerError("that was long ago")
    found, checksum = reader.fetch(source, KEY)
    assert (found.tolist(), checksum) == ([3] * SIZE, b"checksum")
    reader.close()
    writer.close()
