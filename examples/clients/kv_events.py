"""What an engine's prefix cache holds, rebuilt from its events alone; a router asks such an index
where a prompt is cached.

The server says it with `--kv-events-config '{"enable_kv_cache_events": true, "endpoint":
"tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`. `ENGINE_EVENTS` and `ENGINE_REPLAY` say where.
"""

import os
from collections.abc import Iterator

import msgspec
import zmq

Key = tuple[str, int, int | bytes]
"""Medium, KV group, hash."""
PATIENCE_MS = 2000
"""Longest wait for each batch of a replay."""


class Index:
    """The blocks that can be found, with the hash of the block before each, where that is known."""

    def __init__(self) -> None:
        self.parents: dict[Key, int | bytes | None] = {}

    def apply(self, events: list[list]) -> None:
        """Take the events of a batch: arrays of a tag and fields, of which later versions may have
        more.
        """
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
    patience_ms: float = PATIENCE_MS,
) -> Iterator[list[list]]:
    """Yield the events of each batch in order, those that were sent before and those that were
    missed by replay.

    What cannot be had any more, or an engine that begins anew, comes as `AllBlocksCleared`: an
    index then knows too little, never too much.
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
                for found, missed in _replayed(context, replay, expected, patience_ms):
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
    context: zmq.Context, replay: str, since: int, patience_ms: float
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, batch) from a number on, as far as the engine still has them."""
    socket = context.socket(zmq.DEALER)  # a REQ socket takes one answer, and there are many
    socket.connect(replay)
    try:
        socket.send_multipart((b"", since.to_bytes(8, "big")))
        while socket.poll(patience_ms):
            _, number, batch = socket.recv_multipart()
            if not batch:
                return
            yield int.from_bytes(number, "big"), batch
    finally:
        socket.close(0)


if __name__ == "__main__":
    index = Index()
    where = os.environ.get("ENGINE_EVENTS", "tcp://127.0.0.1:5557")
    again = os.environ.get("ENGINE_REPLAY", "tcp://127.0.0.1:5558")
    for batch in follow(zmq.Context(), where, again):
        index.apply(batch)
        print(f"{len(index.parents)} blocks can be found", flush=True)
