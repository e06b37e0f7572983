"""Measures in less than a second how fast this machine multiplies rows by stored weights.

The first pass over weights that exceed the caches is what a token of one request costs; many rows
at once is what a prompt costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from core_kernels.floats import FloatOps
from core_kernels.library import Library
from core_kernels.packed import PackedOps
from core_kernels.quantized import QuantizedOps

Ops = PackedOps | QuantizedOps | FloatOps
WIDTH: Final = 4096
GROUP: Final = 128
MANY_ROWS: Final = 64
STORED_BYTES: Final = 96 << 20
"""Bytes of weights that one row is multiplied with: more than usual caches hold."""
SHARED_BYTES: Final = 2 << 20
"""Bytes of weights that many rows are multiplied with: on a busy machine a call is to end before
another program runs.
"""
MIN_ROUNDS: Final = 3
MIN_S: Final = 0.1
"""Seconds of calls before which there is another round."""
FILL: Final = 0x3C
"""A byte that is a moderate number in every kind of storage, scales included."""
DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.bfloat16,
    "int4": torch.bfloat16,
    "fp8": torch.bfloat16,
}
"""Kinds of stored weights, with the dtype of the rows that they are multiplied with."""
BITS: Final = {"int8": 8, "int4": 4}
PAIRED: Final = ("amx", "avx512_bf16", "neon_bf16")
"""Variants with products of bfloat16; the others widen weights to float32."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes of stored weights of one kind that are multiplied per second."""

    kind: str
    decode_bytes: float
    """With one row."""
    prefill_bytes: float
    """With each of many rows: bytes of weights times rows, per second."""


def measure_speed(library: Library, kind: str) -> Speed:
    """Return the speed of the selected variant with its current number of threads."""
    ops = _ops(library, kind)
    dtype = DTYPES[kind]
    return Speed(
        kind,
        _bytes_per_s(ops, dtype, STORED_BYTES, 1),
        _bytes_per_s(ops, dtype, SHARED_BYTES, MANY_ROWS) * MANY_ROWS,
    )


def _ops(library: Library, kind: str) -> Ops:
    if kind == "fp8":
        return FloatOps(library, torch.float8_e4m3fn, GROUP)
    return QuantizedOps(library, BITS[kind], GROUP) if kind in BITS else PackedOps(library)


def _bytes_per_s(ops: Ops, dtype: torch.dtype, num_bytes: int, rows: int) -> float:
    row_bytes = _empty(ops, 1024, dtype).nbytes // 1024
    outputs = num_bytes // row_bytes // 64 * 64
    weight = _empty(ops, outputs, dtype)
    weight.view(torch.uint8).fill_(FILL)
    x = torch.ones(rows, WIDTH, dtype=dtype)
    return weight.nbytes / _seconds(lambda: ops.linear(x, weight, outputs))


def _empty(ops: Ops, rows: int, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(ops, PackedOps):
        return ops.empty(rows, WIDTH, dtype)
    return ops.empty(rows, WIDTH, torch.uint8)


def _seconds(function: Callable[[], object]) -> float:
    """Return the time of the fastest of some calls: others may use the machine, too."""
    times: list[float] = []
    while len(times) < MIN_ROUNDS or sum(times) < MIN_S:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def widens_bfloat16(library: Library) -> bool:
    """Return whether the selected variant has no products of bfloat16."""
    return not library.core_kernels_isa().decode().startswith(PAIRED)


def prefers_int8(library: Library) -> bool:
    """Return whether the selected variant multiplies int8 weights faster than bfloat16 ones.

    Without vector instructions for integers it does not.
    """
    return widens_bfloat16(library) and library.core_kernels_isa() != b"generic"
