"""Who asks for blocks and who has them, without engines: strangers get nothing, and nobody waits
for who does not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from builtin_plugins.kv_connectors.offload import HostMemory
from builtin_plugins.kv_connectors.tcp.asking import Connection
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
from builtin_plugins.kv_connectors.tcp.serving import BlockServer
from builtin_plugins.kv_connectors.tcp.store import ServedMemory, TcpStore
from core.api import BlockKey, StoreParts
from core.testing.conformance.kv_connectors import LAYOUT
from tests.kv_connectors.trial import free_port
from tests.patience import PATIENCE_S

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
    server = BlockServer(address, TOKEN, '{"dtype": "float32"}', memory or ServedMemory(PARTS))  # type: ignore[arg-type]
    try:
        yield address
    finally:
        server.close()


@pytest.fixture
def context() -> Iterator[Any]:
    with zmq.Context() as made:
        yield made


def connect(
    context: Any, address: str, token: bytes = TOKEN, timeout_s: float = PATIENCE_S, **facts: str
) -> Connection:
    return Connection(
        context, address, token, {"dtype": "float32", **facts}, most_bytes=SIZE, timeout_s=timeout_s
    )


def test_a_block_is_fetched_and_one_that_comes_late_is_waited_for(context: Any) -> None:
    memory = ServedMemory(PARTS)
    with serving(memory) as address:
        connection = connect(context, address)
        assert connection.get(KEY, SIZE, waits=False) is None
        later = threading.Timer(0.05, memory.write, (KEY, block(), b"seal"))
        later.start()
        while (held := connection.get(KEY, SIZE, waits=True)) is None:
            assert later.is_alive() or not memory._held
        assert (held[0].tolist(), held[1]) == ([3] * SIZE, b"seal")
        later.join()
        connection.close()


def test_memory_that_is_being_sent_is_not_used_for_another_block() -> None:
    memory = ServedMemory(PARTS)
    memory.write(KEY, block(), b"seal")
    held = memory.lend(KEY)
    assert held is not None
    memory.drop(KEY)
    memory.write(BlockKey(0, b"l" * 32), block(5), b"seal")
    assert set(held[0].tolist()) == {3}
    memory.give_back(held[0])
    memory.drop(BlockKey(0, b"l" * 32))
    assert len(memory._free[SIZE]) == 1


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"token": OTHER}, "has another token"),
        ({"dtype": "bfloat16"}, "dtype is float32 there and bfloat16 here"),
        ({"layout": "another"}, "layout is None there"),
    ],
)
def test_who_does_not_fit_is_told_why(context: Any, asked: dict[str, Any], named: str) -> None:
    with serving() as address, pytest.raises(PeerError, match=named):
        connect(context, address, **asked)


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"x" * 100, msgspec.msgpack.encode(Get(1, KEY, False))]
)
def test_strangers_get_nothing_and_the_others_are_served(context: Any, message: bytes) -> None:
    memory = ServedMemory(PARTS)
    memory.write(KEY, block(), b"seal")
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
            stranger.send(b"x" * (2 << 20))  # more than anybody may say: it is hung up on
        connection = connect(context, address)
        held = connection.get(KEY, SIZE, waits=False)
        assert held is not None
        assert held[1] == b"seal"
        with pytest.raises(PeerError, match="a block of another size"):
            connection.get(KEY, SIZE + 1, waits=False)
        connection.close()


def test_who_does_not_answer_is_not_waited_for(context: Any) -> None:
    with context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(PeerError, match=r"does not answer within 0\.2 s"):
            connect(context, f"tcp://127.0.0.1:{port}", timeout_s=0.2)


def test_a_connection_that_breaks_between_two_blocks_is_noticed_at_once(context: Any) -> None:
    with serving() as address:
        connection = connect(context, address)
    with pytest.raises(PeerError, match="broke"):
        connection.get(KEY, SIZE, waits=True)
    connection.close()


def test_who_did_not_answer_is_left_alone_for_a_while_and_asked_again() -> None:
    port = free_port()
    source = msgspec.msgpack.encode(("id", "127.0.0.1", port))
    reader = TcpStore(PARTS, TOKEN, None, PATIENCE_S)
    with pytest.raises(PeerError, match="broke"):
        reader.fetch(source, KEY)
    writer = TcpStore(PARTS, TOKEN, f"tcp://127.0.0.1:{port}", PATIENCE_S)
    writer.write(KEY, block(), b"seal")
    reader._resting[source] = reader._resting[source][0] + PATIENCE_S, PeerError("it broke before")
    with pytest.raises(PeerError, match="it broke before"):
        reader.fetch(source, KEY)
    reader._resting[source] = 0.0, PeerError("that was long ago")
    found, seal = reader.fetch(source, KEY)
    assert (found.tolist(), seal) == ([3] * SIZE, b"seal")
    reader.close()
    writer.close()
