"""How fast blocks move: to host memory and back beside a plain copy, and between engines beside a bare socket.

python -m benchmarks.kv.bench_transfer [--block-kib 1792] [--parts 28] [--blocks 96] [--rounds 5]

Blocks have the size of 16 tokens of a model in the shape of Qwen3-0.6B in bfloat16. Rounds take turns; medians are shown.
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

from builtin_plugins.kv_connectors.blocks import seal_of
from builtin_plugins.kv_connectors.offload import HostMemory
from builtin_plugins.kv_connectors.tcp.store import Source, TcpStore
from core.api import BlockKey, KVLayout, StoreParts
from core.spec.kv import FullAttention, GroupLayout, PoolLayout

TOKEN: Final = b"a token of a benchmark"
TIMEOUT_S: Final = 60.0


def key_of(index: int) -> BlockKey:
    """Return the name of a block."""
    return BlockKey(0, index.to_bytes(32, "big"))


def parts_of(args: argparse.Namespace) -> StoreParts:
    """Return what stores know of a rank."""
    size = args.block_kib << 10
    group = GroupLayout(FullAttention(8, 128, "bfloat16"), [*range(args.parts)], 16, 0)
    layout = KVLayout(
        groups=[group], pools=[PoolLayout(args.blocks, size // args.parts, args.parts)], hash_block_size=16
    )
    return StoreParts(layout, 0, 1, "0" * 64, [size], {"dtype": "bfloat16"})


def block_of(args: argparse.Namespace, fill: int) -> list[Any]:
    """Return a block: an array for each layer."""
    return [np.full((args.block_kib << 10) // args.parts, fill, np.uint8) for _ in range(args.parts)]


def serve(args: argparse.Namespace, port: int, bare: socket.socket, ready: Any) -> None:
    """Be the other engine: have blocks, and send as many bytes over a bare socket to whoever connects."""
    store, cache = (
        TcpStore(parts_of(args), TOKEN, f"tcp://127.0.0.1:{port}", TIMEOUT_S),
        [block_of(args, i) for i in range(args.blocks)],
    )
    for index, block in enumerate(cache):
        store.write(key_of(index), block, seal_of(key_of(index), block, "sum"))
    flat = [np.concatenate(block) for block in cache]
    ready.set()
    while True:
        connection, _ = bare.accept()
        with connection:
            for data in flat:
                connection.sendall(data)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("block-kib", 1792), ("parts", 28), ("blocks", 96), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    size, memory = args.block_kib << 10, HostMemory(parts_of(args))
    blocks = [block_of(args, i) for i in range(args.blocks)]
    copies = [np.zeros(size, np.uint8) for _ in blocks]
    flat = [np.concatenate(block) for block in blocks]
    with socket.create_server(("127.0.0.1", 0)) as bare, socket.create_server(("127.0.0.1", 0)) as taken:
        port, bare_port = taken.getsockname()[1], bare.getsockname()[1]
        taken.close()
        ready = multiprocessing.get_context("fork").Event()
        other = multiprocessing.get_context("fork").Process(target=serve, args=(args, port, bare, ready), daemon=True)
        other.start()
        ready.wait()
        store, source = (
            TcpStore(parts_of(args), TOKEN, None, TIMEOUT_S),
            msgspec.msgpack.encode(Source("", "127.0.0.1", port)),
        )

        def copy() -> None:
            for place, data in zip(copies, flat, strict=True):
                np.copyto(place, data)

        def copy_parts() -> None:
            for place, block in zip(copies, blocks, strict=True):
                for part, data in zip(np.split(place, args.parts), block, strict=True):
                    np.copyto(part, data)

        def write() -> None:
            for index, block in enumerate(blocks):
                memory.write(key_of(index), block, b"")
            for index in range(args.blocks):
                memory.drop(key_of(index))

        def write_sealed() -> None:
            for index, block in enumerate(blocks):
                memory.write(key_of(index), block, seal_of(key_of(index), block, "sum"))
            for index in range(args.blocks):
                memory.drop(key_of(index))

        def receive() -> None:
            with socket.create_connection(("127.0.0.1", bare_port)) as connection:
                for place in copies:
                    view = memoryview(place)
                    while view:
                        view = view[connection.recv_into(view) :]

        def fetch() -> None:
            for index, block in enumerate(blocks):
                store.fetch(source, key_of(index), block)

        ways: dict[str, Callable[[], None]] = {
            "plain copy": copy, "of its layers": copy_parts, "host memory": write, "host memory, sealed": write_sealed, "bare socket": receive, "tcp": fetch,
        }  # fmt: skip
        took: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.rounds + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                if turn:  # the first touches memory
                    took[name].append(time.perf_counter() - began)
        store.close()
        other.kill()
    speeds = {name: args.blocks * size / statistics.median(each) / 1e9 for name, each in took.items()}
    for name, speed in speeds.items():
        beside = "bare socket" if name == "tcp" else "plain copy"
        print(f"{name:20} {speed:6.2f} GB/s  {speed / speeds[beside]:5.2f} of a {beside}")


if __name__ == "__main__":
    main()
