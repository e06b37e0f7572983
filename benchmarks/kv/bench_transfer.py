"""How fast blocks move: to host memory and back beside a plain copy, and between engines beside a
bare socket.

Blocks are sealed as they leave the cache and checked as they come back, by what engines do it with.

python -m benchmarks.kv.bench_transfer [--block-kib 1792] [--parts 28] [--blocks 96] [--rounds 9]

Blocks have the size of 16 tokens of a model in the shape of Qwen3-0.6B in bfloat16. Rounds take
turns; medians are shown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import torch

from builtin_plugins.kv_connectors.blocks import CacheBlocks
from builtin_plugins.kv_connectors.offload import HostMemory
from builtin_plugins.kv_connectors.sealing import sealer_on
from builtin_plugins.kv_connectors.tcp.store import Source, TcpStore
from core.api import BlockKey, KVLayout, StoreParts
from core.model_spec.kv import FullAttention, GroupLayout, PoolLayout

TOKEN: Final = b"a token of a benchmark"
TIMEOUT_S: Final = 60.0
COPY: Final = "plain copy"
SOCKET: Final = "bare socket"


def key_of(index: int) -> BlockKey:
    """Return the name of a block."""
    return BlockKey(0, index.to_bytes(32, "big"))


def parts_of(args: argparse.Namespace) -> StoreParts:
    """Return what stores know of a rank."""
    size = args.block_kib << 10
    group = GroupLayout(FullAttention(8, 128, "bfloat16"), [*range(args.parts)], 16, 0)
    layout = KVLayout(
        groups=[group],
        pools=[PoolLayout(args.blocks, size // args.parts, args.parts)],
        hash_block_size=16,
    )
    return StoreParts(layout, 0, 1, "0" * 64, [size], {"dtype": "bfloat16"})


class Rank:
    """A cache, and what a rank's half does with it, beside a store."""

    def __init__(self, args: argparse.Namespace, store: Any) -> None:
        self.store = store
        self._sealer = sealer_on("cpu")
        slots = [
            torch.zeros(args.blocks, (args.block_kib << 10) // args.parts, dtype=torch.uint8)
            for _ in range(args.parts)
        ]
        for index in range(args.blocks):
            for slot in slots:
                slot[index] = index
        self._blocks = CacheBlocks(
            parts_of(args).layout, {(0, slot): tensor for slot, tensor in enumerate(slots)}
        )

    def write(self, index: int) -> None:
        """Store a block."""
        block = self._blocks.look(0, index)
        place = self.store.place(key_of(index))
        self.store.keep(
            key_of(index), place, self._sealer.copy(key_of(index), block, block.sizes.cut(place))
        )

    def read(self, index: int, source: bytes = b"") -> None:
        """Load a block, and check it."""
        key = key_of(index)
        held, seal = self.store.fetch(source, key) if source else self.store.held(key)
        landing = self._blocks.landing(0, index)
        if self._sealer.copy(key, landing.sizes.cut(held), landing) != seal:
            raise SystemExit("a block does not fit its seal")
        self._blocks.land(0, index)


def serve(args: argparse.Namespace, port: int, bare: socket.socket, ready: Any) -> None:
    """Be the other engine: have blocks, and send as many bytes over a bare socket to whoever
    connects.
    """
    rank = Rank(args, TcpStore(parts_of(args), TOKEN, f"tcp://127.0.0.1:{port}", TIMEOUT_S))
    for index in range(args.blocks):
        rank.write(index)
    flat = [np.full(args.block_kib << 10, index, np.uint8) for index in range(args.blocks)]
    ready.set()
    while True:
        connection, _ = bare.accept()
        with connection:
            for data in flat:
                connection.sendall(data)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("block-kib", 1792), ("parts", 28), ("blocks", 96), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    size = args.block_kib << 10
    with (
        socket.create_server(("127.0.0.1", 0)) as bare,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        port = taken.getsockname()[1]
        bare_port = bare.getsockname()[1]
        taken.close()
        ready = multiprocessing.get_context("fork").Event()
        other = multiprocessing.get_context("fork").Process(
            target=serve, args=(args, port, bare, ready), daemon=True
        )
        other.start()  # before any thread is there, which it would miss
        memory = Rank(args, HostMemory(parts_of(args)))
        copies = [np.zeros(size, np.uint8) for _ in range(args.blocks)]
        flat = [np.full(size, index, np.uint8) for index in range(args.blocks)]
        ready.wait()
        fetching = Rank(args, TcpStore(parts_of(args), TOKEN, None, TIMEOUT_S))
        source = msgspec.msgpack.encode(Source("", "127.0.0.1", port))

        def copy() -> None:
            for place, data in zip(copies, flat, strict=True):
                np.copyto(place, data)

        def write() -> None:
            for index in range(args.blocks):
                memory.store.drop(key_of(index))
                memory.write(index)

        def read() -> None:
            for index in range(args.blocks):
                memory.read(index)

        def receive() -> None:
            with socket.create_connection(("127.0.0.1", bare_port)) as connection:
                for place in copies:
                    view = memoryview(place)
                    while view:
                        view = view[connection.recv_into(view) :]

        def fetch() -> None:
            for index in range(args.blocks):
                fetching.read(index, source)

        ways: dict[str, tuple[Callable[[], None], str, float]] = {
            COPY: (copy, COPY, 0), "stored, sealed": (write, COPY, 0.7), "loaded, checked": (read, COPY, 0.7),
            SOCKET: (receive, SOCKET, 0), "tcp, checked": (fetch, SOCKET, 0.6),
        }  # fmt: skip
        took: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.rounds + 1):
            for name, (way, _, _) in ways.items():
                began = time.perf_counter()
                way()
                if turn:  # the first touches memory
                    took[name].append(time.perf_counter() - began)
        fetching.store.close()
        other.kill()
    speeds = {
        name: args.blocks * size / statistics.median(each) / 1e9 for name, each in took.items()
    }
    for name, (_, beside, target) in ways.items():
        share = speeds[name] / speeds[beside]
        verdict = (
            f"  target {target:.2f}: {'met' if share >= target else 'missed'}" if target else ""
        )
        print(f"{name:16} {speeds[name]:6.2f} GB/s  {share:5.2f} of a {beside}{verdict}")


if __name__ == "__main__":
    main()
