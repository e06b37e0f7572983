"""Linear layers with packed and quantized weights, compared with torch and the machine's limits.

Prints per number of tokens: GB of weights per second and their share of the read bandwidth, GFLOP
per second and their share of torch's float32 product of as many rows in the same rounds, and the
median of paired ratios: packed weights over torch, and quantized weights over packed ones. With one
thread the clock is the thread's CPU time, so that other processes matter less.

Run: python benchmarks/ops/bench_linear.py [--threads N] [--rounds N] [--layers N] [--isa
avx2|avx512|avx512_bf16|amx|...] [--tokens 1 8 ...] [--kinds "int4 32" fp8 ...]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from core_kernels.floats import FloatOps
from core_kernels.library import Library, load_library
from core_kernels.packed import PackedOps
from core_kernels.quantized import QuantizedOps
from core_kernels.superblocks import KINDS as BLOCKS
from core_kernels.superblocks import SuperblockOps
from torch.nn.functional import linear

SHAPES = {"qkv": (4096, 1024), "out": (1024, 2048), "gate_up": (6144, 1024), "down": (1024, 3072)}
"""Shapes of a 0.6B model."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256, 1024)


Ops = PackedOps | QuantizedOps | FloatOps | SuperblockOps
KINDS: dict[str, Callable[[Library], Ops]] = {
    "int8 128": lambda library: QuantizedOps(library, 8, 128),
    "int4 32": lambda library: QuantizedOps(library, 4, 32),
    "int4 128": lambda library: QuantizedOps(library, 4, 128),
    "int4 128 zeros": lambda library: QuantizedOps(
        library, 4, 128, torch.float16, zeros=torch.int16
    ),
    "fp8": lambda library: FloatOps(library, torch.float8_e4m3fn, 128),
    "mxfp4": lambda library: QuantizedOps(library, 4, 32, is_float=True),
    "nvfp4": lambda library: QuantizedOps(library, 4, 16, torch.float16, is_float=True),
    **{kind: partial(SuperblockOps, kind=kind) for kind in BLOCKS},
}


def seconds(function: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the time of one call."""
    start = clock()
    function()
    return clock() - start


def read_bandwidth(clock: Callable[[], float]) -> float:
    """Return the bytes per second of the fastest of a few passes over 512 MB."""
    memory = torch.ones(1 << 27)
    return memory.nbytes / min(seconds(memory.sum, clock) for _ in range(5))


def bfloat16_rate(clock: Callable[[], float]) -> float:
    """Return the operations per second of torch's bfloat16 product of 2048^3."""
    square = torch.randn(2048, 2048).bfloat16()
    return 2 * 2048**3 / min(seconds(lambda: linear(square, square), clock) for _ in range(5))


class Layers:
    """The linear layers of a model, plain and in each kind of packed weights."""

    def __init__(self, kinds: dict[str, Ops], layers: int) -> None:
        self.kinds = kinds
        self.weights = [
            (torch.randn(shape) * 0.02).bfloat16()
            for _ in range(layers)
            for shape in SHAPES.values()
        ]
        self.packed = {
            name: [packed(ops, weight) for weight in self.weights] for name, ops in kinds.items()
        }
        self.wide = [torch.randn(shape) for shape in SHAPES.values()]
        self.numbers = sum(weight.numel() for weight in self.weights)
        self.num_bytes = {"torch": 2 * self.numbers} | {
            name: sum(own.nbytes for own in self.packed[name]) for name in kinds
        }

    def times(self, tokens: int, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
        """Return the seconds of each kind in each round; "float32" is torch's for one layer."""
        inputs = {shape[1]: torch.randn(tokens, shape[1]).bfloat16() for shape in SHAPES.values()}
        wide_inputs = {width: x.float() for width, x in inputs.items()}

        def wide() -> None:
            for weight in self.wide:
                torch.mm(wide_inputs[weight.shape[1]], weight.T)

        def plain() -> None:
            for weight in self.weights:
                linear(inputs[weight.shape[1]], weight)

        def own_kernel(name: str) -> None:
            ops = self.kinds[name]
            for weight, own in zip(self.weights, self.packed[name], strict=True):
                x = inputs[weight.shape[1]]
                if isinstance(ops, SuperblockOps):
                    ops.linear(x, own, torch.empty(len(x), len(weight), dtype=x.dtype))
                else:
                    ops.linear(x, own, len(weight))

        calls = {"float32": wide, "torch": plain}
        calls |= {name: partial(own_kernel, name) for name in self.kinds}
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds + 1):
            for name, call in calls.items():
                found[name].append(seconds(call, clock))
        return {name: times[1:] for name, times in found.items()}

    def line(self, tokens: int, times: dict[str, list[float]], bandwidth: float) -> str:
        """Return the figures of one number of tokens."""
        wide_numbers = sum(weight.numel() for weight in self.wide)
        wide_rate = 2 * wide_numbers * tokens / statistics.median(times["float32"])
        line = f"{tokens:>6}  {wide_rate / 1e9:>11.0f}"
        for name, num_bytes in self.num_bytes.items():
            median = statistics.median(times[name])
            base = times["torch" if name in ("torch", "packed") else "packed"]
            ratio = statistics.median(
                first / second for first, second in zip(base, times[name], strict=True)
            )
            moved = num_bytes / median
            rate = 2 * self.numbers * tokens / median
            line += (
                f"  {moved / 1e9:>14.1f} {moved / bandwidth:>5.2f}"
                f" {rate / 1e9:>7.0f} {rate / wide_rate:>5.2f} {ratio:>5.2f}"
            )
        return line


def main() -> int:
    """Print one line per number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--isa", help="instruction set of the kernels instead of the best one")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=["int8 128", "int4 32", "int4 128"]
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library = load_library()
    if library is None:
        return 1
    if options.isa and not library.core_kernels_use(options.isa.encode()):
        parser.error(f"this machine has no {options.isa}")
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    bandwidth = read_bandwidth(clock)
    print(
        f"{library.core_kernels_isa().decode()}, {options.threads} threads, bfloat16; "
        f"reads {bandwidth / 1e9:.1f} GB/s, torch multiplies 2048^3 at "
        f"{bfloat16_rate(clock) / 1e9:.0f} GFLOP/s in bfloat16"
    )
    kinds: dict[str, Ops] = {"packed": PackedOps(library)} | {
        name: KINDS[name](library) for name in options.kinds
    }
    layers = Layers(kinds, options.layers)
    print(
        "tokens  f32 GFLOP/s"
        + "".join(
            f"  {name + ' GB/s':>14} {'share':>5} {'GFLOP/s':>7} {'share':>5} {'ratio':>5}"
            for name in layers.num_bytes
        )
    )
    for tokens in options.tokens:
        times = layers.times(tokens, options.rounds, clock)
        print(layers.line(tokens, times, bandwidth), flush=True)
    return 0


def packed(ops: Ops, weight: torch.Tensor) -> torch.Tensor:
    """Return a weight in the packed layout; quantized values are random."""
    rows, width = weight.shape
    if isinstance(ops, SuperblockOps):
        own = ops.empty(rows, width)
        blocks = width // ops.block.inputs
        # Small bytes: none of them is an infinite scale.
        ops.pack(
            own,
            rows,
            0,
            torch.randint(0, 60, (rows, blocks, ops.block.num_bytes), dtype=torch.uint8),
        )
        return own
    own = ops.empty(rows, width, weight.dtype)
    if isinstance(ops, FloatOps):
        scales = torch.full((rows, -(-weight.shape[1] // ops.group)), 0.02)
        ops.pack_codes(own, rows, 0, (weight.float() * 50).to(ops.kind), scales)
    elif isinstance(ops, QuantizedOps) and (ops.is_float or ops.zeros):
        codes = (weight.float() * 50).to(torch.int8).clamp(-4, 4)
        scales = torch.full((rows, -(-weight.shape[1] // ops.group)), 0.02)
        ops.pack_codes(
            own, rows, 0, codes, scales, torch.ones_like(scales).short() if ops.zeros else None
        )
    else:
        ops.pack(own, rows, 0, weight)
    return own


if __name__ == "__main__":
    sys.exit(main())
