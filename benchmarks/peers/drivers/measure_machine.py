"""Driver that measures the machine: each line returns the best of several tries.

`read_bytes_s`: memory reads by all threads, 512 MB in large pages, by a C++ loop if there is a
compiler, or by torch's sum; the better counts. `flop_s`: products by name: bfloat16 and float32
of 2048^3, and bfloat16 ones of the linear layers in `--products` with 1,024 rows by each available
library.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from core_kernels.build import find_compiler
from core_kernels.library import load_library
from core_kernels.packed import PackedOps
from torch.nn.functional import linear

MEMORY_BYTES = 512 << 20
ROWS = 1024
SQUARE = 2048
TRIES = 3
READER = Path(__file__).with_name("read_memory.cpp")


def compile_reader(folder: Path) -> Callable[[int, int, int], int] | None:
    """Return the C++ loop; None without a compiler."""
    compiler = find_compiler()
    library = folder / "read_memory.so"
    if compiler is None:
        return None
    flags = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")
    if subprocess.run([compiler, *flags, str(READER), "-o", str(library)], check=False).returncode:
        return None
    read = ctypes.CDLL(str(library)).read_memory
    read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    return read


def best_s(function: Callable[[], object]) -> float:
    """Return the minimum time of several calls."""
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


class Machine:
    """Memory to read and matrices to multiply."""

    def __init__(
        self, threads: int, products: Sequence[tuple[int, int]], isa: str | None, folder: Path
    ) -> None:
        """Allocate them; `isa` is the instruction set of the engine's products."""
        torch.set_num_threads(threads)
        self._threads = threads
        memory = mmap.mmap(-1, MEMORY_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        self._memory = torch.frombuffer(memory, dtype=torch.float32).fill_(1)
        self._read = compile_reader(folder)
        self._square = torch.randn(SQUARE, SQUARE).bfloat16()
        self._wide = self._square.float()
        self._weights = [
            (torch.randn(rows, columns) * 0.02).bfloat16() for rows, columns in products
        ]
        self._inputs = [torch.randn(ROWS, columns).bfloat16() for _, columns in products]
        library = load_library()
        if isa and not (library and library.core_kernels_use(isa.encode())):
            raise SystemExit(f"this machine or the library has no {isa}")
        self._ops = PackedOps(library) if library else None
        self._packed = (
            [self._pack(self._ops, weight) for weight in self._weights] if self._ops else []
        )

    def _pack(self, ops: PackedOps, weight: torch.Tensor) -> torch.Tensor:
        packed = ops.empty(len(weight), weight.shape[1], weight.dtype)
        ops.pack(packed, len(weight), 0, weight)
        return packed

    def measure(self) -> dict[str, Any]:
        """Return the current rates of the machine."""
        read_s = best_s(self._memory.sum)
        if self._read:
            loop = self._read
            start = self._memory.data_ptr()
            read_s = min(read_s, best_s(lambda: loop(start, MEMORY_BYTES, self._threads)))
        pairs = list(zip(self._inputs, self._weights, strict=True))
        work = sum(2 * ROWS * weight.numel() for weight in self._weights)
        rates = {
            f"torch, {SQUARE}^3": 2
            * SQUARE**3
            / best_s(lambda: linear(self._square, self._square)),
            f"torch float32, {SQUARE}^3": 2
            * SQUARE**3
            / best_s(lambda: linear(self._wide, self._wide)),
            f"torch, {ROWS} rows": work
            / sum(best_s(lambda x=x, w=w: linear(x, w)) for x, w in pairs),  # type: ignore[misc]
        }
        if self._ops:
            ops = self._ops
            rows = [len(weight) for weight in self._weights]
            packed = zip(self._inputs, self._packed, rows, strict=True)
            own = [best_s(partial(ops.linear, x, p, n)) for x, p, n in packed]
            rates[f"engine, {ROWS} rows"] = work / sum(own)
        return {"read_bytes_s": MEMORY_BYTES / read_s, "flop_s": rates}


def main() -> None:
    """Answer each line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--products", type=json.loads, required=True)
    parser.add_argument("--isa")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(arguments.threads, arguments.products, arguments.isa, Path(folder))
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(machine.measure()), flush=True)


if __name__ == "__main__":
    main()
