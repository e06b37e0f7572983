"""An index of an engine's prefix cache, built from its KV events, as a router would use it.

The server publishes events with `--kv-events-config '{"enable_kv_cache_events": true, "endpoint":
"tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`. `ENGINE_EVENTS` and `ENGINE_REPLAY` are their
addresses.
"""

import os
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
    replay = os.environ.get("ENGINE_REPLAY", "tcp://127.0.0.1:5558")
    for batch in follow(zmq.Context(), events, replay):
        index.apply(batch)
        print(f"{len(index.parents)} blocks are cached", flush=True)
