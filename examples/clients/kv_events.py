"""An index of an engine's prefix cache, built from its KV events, as a router would use it.

The server publishes events with `--kv-events-config '{"enable_kv_cache_events": true, "endpoint":
"tcp://*:5557", "replay_endpoint": "tcp://*:5657"}'`. `ENGINE_EVENTS` and `ENGINE_REPLAY` are their
addresses; each data-parallel rank has its own (`GET /kv_event_sources`).
"""

import hashlib
import os
import struct
from collections.abc import Iterator

import msgspec
import zmq

Key = tuple[str, int, int | bytes]
"""Medium, KV group, hash."""
REPLAY_TIMEOUT_MS = 2000
"""Maximum wait for each batch of a replay."""


class Index:
    """The cached blocks, with the hash of the block before each if it is known."""

    def __init__(self) -> None:
        self.parents: dict[Key, int | bytes | None] = {}

    def apply(self, events: list[list]) -> None:
        """Apply a batch of events: arrays of a tag and fields; later versions may add fields."""
        for tag, *fields in events:
            if tag == "AllBlocksCleared":
                self.parents.clear()
            elif tag == "BlockRemoved":
                hashes, medium, group = [*fields, None][:3]
                for block_hash in hashes:
                    self.parents.pop((medium, group, block_hash), None)
            elif tag == "BlockStored":
                hashes, parent, _, _, _, medium, _, _, group = [*fields, None, None, None][:9]
                for block_hash in hashes:
                    self.parents[medium, group, block_hash] = parent
                    parent = block_hash


def block_keys(
    token_ids: list[int], identity: str, link_tokens: int, salt: str = ""
) -> list[bytes]:
    """Return the keys of a prompt's whole links, to look up in an index before it is sent.

    `identity` and `link_tokens` are those of `chain` in `GET /kv_event_sources`. Events have keys
    as `int.from_bytes(key[-8:], "big")`, or whole with `"block_hashes": "bytes"`.
    """
    root = b"engine.kv.1"
    for name, value in ((b"model", identity.encode()), (b"salt", salt.encode())):
        root += struct.pack("<Q", len(name)) + name + struct.pack("<Q", len(value)) + value
    key = hashlib.sha256(root).digest()
    keys = []
    for start in range(0, len(token_ids) - link_tokens + 1, link_tokens):
        link = token_ids[start : start + link_tokens]
        key = hashlib.sha256(key + struct.pack(f"<{link_tokens}I", *link)).digest()
        keys.append(key)
    return keys


def follow(
    context: zmq.Context,
    events: str,
    replay: str,
    topic: str = "",
    timeout_ms: float = REPLAY_TIMEOUT_MS,
) -> Iterator[list[list]]:
    """Yield the events of each batch in order; earlier and missed batches are replayed.

    Batches that are lost, or an engine restart, yield `AllBlocksCleared`. So an index may miss
    blocks but never lists absent ones.
    """
    socket = context.socket(zmq.SUB)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(events)
    expected = 0
    try:
        while True:
            _, number, batch = socket.recv_multipart()
            seen = int.from_bytes(number, "big")
            if seen < expected:
                yield [["AllBlocksCleared"]]
                expected = 0
            if seen > expected:
                for found, missed in _replayed(context, replay, expected, timeout_ms):
                    if found >= seen:
                        break
                    if found > expected:
                        yield [["AllBlocksCleared"]]
                    yield msgspec.msgpack.decode(missed)[1]
                    expected = found + 1
                if seen > expected:
                    yield [["AllBlocksCleared"]]
            yield msgspec.msgpack.decode(batch)[1]
            expected = seen + 1
    finally:
        socket.close(0)


def _replayed(
    context: zmq.Context, replay: str, since: int, timeout_ms: float
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, batch) from a number on, as far as the engine still stores them."""
    socket = context.socket(zmq.DEALER)  # a REQ socket receives one reply only
    socket.connect(replay)
    try:
        socket.send_multipart((b"", since.to_bytes(8, "big")))
        while socket.poll(timeout_ms):
            _, number, batch = socket.recv_multipart()
            if not batch:
                return
            yield int.from_bytes(number, "big"), batch
    finally:
        socket.close(0)


if __name__ == "__main__":
    index = Index()
    events = os.environ.get("ENGINE_EVENTS", "tcp://127.0.0.1:5557")
    replay = os.environ.get("ENGINE_REPLAY", "tcp://127.0.0.1:5657")
    for batch in follow(zmq.Context(), events, replay):
        index.apply(batch)
        print(f"{len(index.parents)} blocks are cached", flush=True)
