"""Linear layers with packed and quantized weights, compared with torch and the machine's limits.

Prints per number of tokens: GB of weights per second, GFLOP per second, and the median of paired
ratios: packed weights over torch, and quantized weights over packed ones. With one thread the clock
is the thread's CPU time, so that other processes matter less.

Run: python benchmarks/ops/bench_linear.py [--threads N] [--rounds N] [--layers N] [--isa
avx512_bf16|amx|...] [--tokens 1 8 ...] [--kinds "int4 32" fp8 ...]
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


def limits(clock: Callable[[], float]) -> str:
    """Return the current limits of the machine: memory reads, and a large product."""
    memory = torch.ones(1 << 27)
    square = torch.randn(2048, 2048).bfloat16()
    read = min(seconds(memory.sum, clock) for _ in range(5))
    product = min(seconds(lambda: linear(square, square), clock) for _ in range(5))
    gb_s = memory.nbytes / read / 1e9
    gflop_s = 2 * 2048**3 / product / 1e9
    return f"reads {gb_s:.1f} GB/s, multiplies 2048^3 at {gflop_s:.0f} GFLOP/s"


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
    kinds: dict[str, Ops] = {"packed": PackedOps(library)} | {
        name: KINDS[name](library) for name in options.kinds
    }
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    print(
        f"{library.core_kernels_isa().decode()}, {options.threads} threads, bfloat16; "
        f"{limits(clock)}"
    )
    weights = [
        (torch.randn(shape) * 0.02).bfloat16()
        for _ in range(options.layers)
        for shape in SHAPES.values()
    ]
    packed_weights = {
        name: [packed(ops, weight) for weight in weights] for name, ops in kinds.items()
    }
    numbers = sum(weight.numel() for weight in weights)
    num_bytes = {"torch": 2 * numbers} | {
        name: sum(own.nbytes for own in packed_weights[name]) for name in kinds
    }
    print(
        "tokens"
        + "".join(f"  {name + ' GB/s':>14} {'GFLOP/s':>7} {'ratio':>5}" for name in num_bytes)
    )
    for tokens in options.tokens:
        inputs = {shape[1]: torch.randn(tokens, shape[1]).bfloat16() for shape in SHAPES.values()}
        rounds: dict[str, list[float]] = {name: [] for name in num_bytes}

        def plain() -> None:
            for weight in weights:
                linear(inputs[weight.shape[1]], weight)  # noqa: B023 - called in this round only

        def own_kernel(name: str) -> None:
            ops = kinds[name]
            for weight, own in zip(weights, packed_weights[name], strict=True):
                x = inputs[weight.shape[1]]  # noqa: B023 - called in this round only
                if isinstance(ops, SuperblockOps):
                    ops.linear(x, own, torch.empty(len(x), len(weight), dtype=x.dtype))
                else:
                    ops.linear(x, own, len(weight))

        for _ in range(options.rounds + 1):
            rounds["torch"].append(seconds(plain, clock))
            for name in kinds:
                rounds[name].append(seconds(partial(own_kernel, name), clock))
        line = f"{tokens:>6}"
        for name, times in rounds.items():
            median = statistics.median(times[1:])
            base = rounds["torch" if name in ("torch", "packed") else "packed"]
            ratio = statistics.median(
                first / second for first, second in zip(base[1:], times[1:], strict=True)
            )
            rate = f"{num_bytes[name] / median / 1e9:.1f}"
            line += f"  {rate:>14} {2 * numbers * tokens / median / 1e9:>7.0f} {ratio:>5.2f}"
        print(line, flush=True)
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
