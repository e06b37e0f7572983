"""Throughput of KV block transfers: host memory against a plain copy, peer against a socket.

Blocks are checksummed when they leave the cache and verified when they return, as in engines.

Run: python -m benchmarks.kv.bench_transfer [--block-kib 1792] [--parts 28] [--blocks 96] [--rounds
9]

A block holds 16 tokens of a model in the shape of Qwen3-0.6B in bfloat16. Prints medians of
alternating rounds.
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

from builtin_plugins.features.kv_tiers.cache_blocks import CacheBlocks
from builtin_plugins.features.kv_tiers.checksum import checksummer_for
from builtin_plugins.kv_connectors.api import BlockKey, StoreParts
from builtin_plugins.kv_connectors.offload import HostMemory
from builtin_plugins.kv_connectors.tcp.store import EngineAddress, TcpStore
from core.model_spec.kv import FullAttention, GroupLayout, KVLayout, PoolLayout

TOKEN: Final = b"a token of a benchmark"
TIMEOUT_S: Final = 60.0
COPY: Final = "plain copy"
SOCKET: Final = "bare socket"


def block_key(index: int) -> BlockKey:
    """Return the key of a block."""
    return BlockKey(0, index.to_bytes(32, "big"))


def store_parts(args: argparse.Namespace) -> StoreParts:
    """Return the store parts of a rank."""
    size = args.block_kib << 10
    group = GroupLayout(FullAttention(8, 128, "bfloat16"), [*range(args.parts)], 16, 0)
    layout = KVLayout(
        groups=[group],
        pools=[PoolLayout(args.blocks, size // args.parts, args.parts)],
        hash_block_size=16,
    )
    return StoreParts(layout, 0, 1, "0" * 64, [size], {"dtype": "bfloat16"})


class Rank:
    """Cache and store of a rank."""

    def __init__(self, args: argparse.Namespace, store: Any) -> None:
        self.store = store
        self._checksummer = checksummer_for("cpu")
        slots = [
            torch.zeros(args.blocks, (args.block_kib << 10) // args.parts, dtype=torch.uint8)
            for _ in range(args.parts)
        ]
        for index in range(args.blocks):
            for slot in slots:
                slot[index] = index
        self._blocks = CacheBlocks(
            store_parts(args).layout, {(0, slot): tensor for slot, tensor in enumerate(slots)}
        )

    def write(self, index: int) -> None:
        """Store a block."""
        key = block_key(index)
        block = self._blocks.read_block(0, index)
        buffer = self.store.allocate(key)
        checksum = self._checksummer.copy(key, block, block.sizes.split(buffer))
        self.store.commit(key, buffer, checksum)

    def read(self, index: int, source: bytes = b"") -> None:
        """Load and verify a block."""
        key = block_key(index)
        buffer, expected = self.store.fetch(source, key) if source else self.store.locate(key)
        target = self._blocks.destination(0, index)
        if self._checksummer.copy(key, target.sizes.split(buffer), target) != expected:
            raise SystemExit("a block does not match its checksum")
        self._blocks.commit(0, index)


def serve(args: argparse.Namespace, port: int, bare: socket.socket, ready: Any) -> None:
    """Run the peer engine: serve blocks, and send the same bytes over a plain socket."""
    rank = Rank(args, TcpStore(store_parts(args), TOKEN, f"tcp://127.0.0.1:{port}", TIMEOUT_S))
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
        other.start()  # before other threads start: it affects later ones only
        memory = Rank(args, HostMemory(store_parts(args)))
        copies = [np.zeros(size, np.uint8) for _ in range(args.blocks)]
        flat = [np.full(size, index, np.uint8) for index in range(args.blocks)]
        ready.wait()
        fetching = Rank(args, TcpStore(store_parts(args), TOKEN, None, TIMEOUT_S))
        source = msgspec.msgpack.encode(EngineAddress("", "127.0.0.1", port))

        def copy() -> None:
            for target, data in zip(copies, flat, strict=True):
                np.copyto(target, data)

        def write() -> None:
            for index in range(args.blocks):
                memory.store.drop(block_key(index))
                memory.write(index)

        def read() -> None:
            for index in range(args.blocks):
                memory.read(index)

        def receive() -> None:
            with socket.create_connection(("127.0.0.1", bare_port)) as connection:
                for target in copies:
                    view = memoryview(target)
                    while view:
                        view = view[connection.recv_into(view) :]

        def fetch() -> None:
            for index in range(args.blocks):
                fetching.read(index, source)

        ways: dict[str, tuple[Callable[[], None], str, float]] = {
            COPY: (copy, COPY, 0),
            "stored with checksum": (write, COPY, 0.7),
            "loaded and verified": (read, COPY, 0.7),
            SOCKET: (receive, SOCKET, 0),
            "tcp, verified": (fetch, SOCKET, 0.6),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.rounds + 1):
            for name, (way, _, _) in ways.items():
                began = time.perf_counter()
                way()
                if turn:  # the first round touches the memory
                    took[name].append(time.perf_counter() - began)
        fetching.store.close()
        other.kill()
    speeds = {
        name: args.blocks * size / statistics.median(each) / 1e9 for name, each in took.items()
    }
    for name, (_, baseline, target) in ways.items():
        share = speeds[name] / speeds[baseline]
        verdict = (
            f"  target {target:.2f}: {'met' if share >= target else 'missed'}" if target else ""
        )
        print(f"{name:16} {speeds[name]:6.2f} GB/s  {share:5.2f} of a {baseline}{verdict}")


if __name__ == "__main__":
    main()
