"""C++ ops compared with the torch reference, paired and interleaved.

Prints per op, dtype and number of tokens: the median times and the median of paired ratios.

Run: python benchmarks/ops/bench_cpu_ops.py [--threads N] [--rounds N] [--isa avx2|avx512|...]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from core_kernels.library import load_library

from builtin_plugins.op_impls.cpu import ops
from core.models.ops import reference

HIDDEN = 1024
WIDTH = 3072
HEADS = 16
KV_HEADS = 8
SIZE = 128
TOKENS = (1, 8, 64, 1024)


def cases(tokens: int, dtype: torch.dtype) -> dict[str, tuple[object, ...]]:
    """Return the arguments of each op for one step of a 0.6B model."""
    hidden = torch.randn(tokens, HIDDEN).to(dtype)
    weight = torch.ones(HIDDEN, dtype=dtype)
    fused = torch.randn(tokens, HEADS + 2 * KV_HEADS, SIZE).to(dtype)
    angles = torch.rand(2048, SIZE // 2)
    gate_up = torch.randn(tokens, 2 * WIDTH).to(dtype)
    return {
        "rms_norm": (hidden, weight, 1e-6),
        "rms_norm (per head)": (fused[:, :HEADS], torch.ones(SIZE, dtype=dtype), 1e-6),
        # The sums are reset to zero each time: they would overflow float16.
        "add_rms_norm": (torch.zeros_like(hidden), hidden.clone(), weight, 1e-6),
        "silu_and_mul": (gate_up,),
        "gelu_tanh_and_mul": (gate_up,),
        "rotary": (
            fused[:, :HEADS],
            fused[:, HEADS : HEADS + KV_HEADS],
            torch.cat((angles.cos(), angles.sin()), -1),
            torch.arange(tokens),
        ),
    }


def seconds(function: Callable[..., object], arguments: tuple[object, ...], repeats: int) -> float:
    """Return the mean time of a call over `repeats`."""
    start = time.perf_counter()
    for _ in range(repeats):
        function(*arguments)
    return (time.perf_counter() - start) / repeats


def compare(name: str, arguments: tuple[object, ...], rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of reference and kernel, and of their paired ratios."""
    op = name.partition(" ")[0]
    pair = (getattr(reference, op), getattr(ops, op))
    once = max(seconds(function, arguments, 2) for function in pair)
    repeats = max(1, int(0.002 / once))
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(rounds):
        for which in (0, 1) if index % 2 else (1, 0):
            times[which].append(seconds(pair[which], arguments, repeats))
    ratios = [slow / fast for slow, fast in zip(*times, strict=True)]
    return statistics.median(times[0]), statistics.median(times[1]), statistics.median(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--isa", help="instruction set of the kernels instead of the best one")
    arguments = parser.parse_args()
    library = load_library()
    if arguments.isa and not (library and library.core_kernels_use(arguments.isa.encode())):
        parser.error(f"this machine has no {arguments.isa}")
    torch.set_num_threads(arguments.threads)
    if ops.KERNELS is None:
        sys.stderr.write("no C++ library: nothing to compare\n")
        return 1
    isa = library.core_kernels_isa().decode() if library else "none"
    print(f"instruction set {isa}, {arguments.threads} thread(s)")
    print(f"{'op':22} {'dtype':9} {'tokens':>6} {'torch us':>10} {'C++ us':>10} {'faster':>7}")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for tokens in TOKENS:
            torch.manual_seed(0)
            for name, inputs in cases(tokens, dtype).items():
                slow, fast, ratio = compare(name, inputs, arguments.rounds)
                label = str(dtype).removeprefix("torch.")
                print(
                    f"{name:22} {label:9} {tokens:6} {slow * 1e6:10.1f} {fast * 1e6:10.1f} "
                    f"{ratio:6.1f}x"
                )
    return 0


if __name__ == "__main__":
    with torch.inference_mode():
        raise SystemExit(main())
