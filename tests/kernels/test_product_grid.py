"""Products of every kind of weight at the edges of the kernels' blocks, on each instruction set.

Widths lie around the inputs that are opened together, weights around whole panels, and batches
around the numbers of rows at which the kernels change. A small part runs with the fast tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from core_kernels.floats import FloatOps
from core_kernels.library import Library, load_library
from core_kernels.packed import PackedOps
from core_kernels.quantized import QuantizedOps
from core_kernels.superblocks import SuperblockOps

LIBRARY = load_library()
TABLE = torch.linspace(-1, 1, 16)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 3e-4, torch.bfloat16: 8e-3, torch.float16: 3e-3}
IN_EIGHT_BITS = 1.5e-2
"""Tolerance where x is rounded to eight bits."""
COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 32, 64, 97]
MANY = 391
"""More rows of x than the kernels multiply in one go."""
BATCHES = (64, *COUNTS, MANY)
FAST_BATCHES = (1, 2, 4, 5, 6, 7, 31)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")

Weight = tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]
"""A plain weight in float64, and the product with the same one as the kernels have it."""
Maker = Callable[[int, int, torch.dtype], Weight]
"""Makes a weight of some rows and some width; the dtype is that of x."""


def packed_weight(ops: PackedOps) -> Maker:
    def made(rows: int, width: int, dtype: torch.dtype) -> Weight:
        plain = torch.randn(rows, width).to(dtype)
        weight = ops.empty(rows, width, dtype)
        ops.pack(weight, rows, 0, plain)
        return plain.double(), lambda x: ops.linear(x, weight, rows)

    return made


def quantized_weight(ops: QuantizedOps) -> Maker:
    def made(rows: int, width: int, dtype: torch.dtype) -> Weight:
        del dtype
        groups = (rows, -(-width // ops.group))
        top = 1 << (ops.bits - 1)
        codes = torch.randint(-top, top, (rows, width), dtype=torch.int8)
        if ops.is_float:
            codes = codes.clamp(-4, 4)
        zeros = torch.randint(-9, 9, groups).short() if ops.has_zeros else None
        weight = ops.empty(rows, width, torch.float32)
        ops.pack_codes(weight, rows, 0, codes, torch.rand(groups) + 0.1, zeros)
        plain = ops.rows(weight, rows, width, torch.arange(rows))
        return plain.double(), lambda x: ops.linear(x, weight, rows)

    return made


def float_weight(ops: FloatOps) -> Maker:
    def made(rows: int, width: int, dtype: torch.dtype) -> Weight:
        del dtype
        values = torch.randn(rows, width).to(ops.kind)
        if ops.kind == torch.uint8:
            values = torch.randint(0, 16, (rows, width)).to(torch.uint8)
        weight = ops.empty(rows, width, torch.float32)
        ops.pack_codes(weight, rows, 0, values, torch.rand(rows, -(-width // ops.group)) + 0.1)
        plain = ops.rows(weight, rows, width, torch.arange(rows))
        return plain.double(), lambda x: ops.linear(x, weight, rows)

    return made


def block_weight(ops: SuperblockOps) -> Maker:
    def made(rows: int, width: int, dtype: torch.dtype) -> Weight:
        del dtype
        width = -(-width // ops.block.inputs) * ops.block.inputs
        weight = ops.empty(rows, width)
        # Small bytes: none of them is an infinite scale.
        shape = (rows, width // ops.block.inputs, ops.block.num_bytes)
        ops.pack(weight, rows, 0, torch.randint(0, 60, shape, dtype=torch.uint8))
        plain = ops.rows(weight, rows, width, torch.arange(rows))

        def product(x: torch.Tensor) -> torch.Tensor:
            out = x.new_empty(len(x), rows)
            ops.linear(x, weight, out)
            return out

        return plain.double(), product

    return made


def gguf_weight(kind: str, library: Library) -> Maker:
    return block_weight(SuperblockOps(library, kind))


KINDS: dict[str, Callable[[Library], Maker]] = {
    "packed": lambda library: packed_weight(PackedOps(library)),
    "int8": lambda library: quantized_weight(QuantizedOps(library, 8, 128)),
    "int8 by int8": lambda library: quantized_weight(QuantizedOps(library, 8, 128, x_bits=8)),
    "int4": lambda library: quantized_weight(QuantizedOps(library, 4, 32)),
    "int4 with zeros": lambda library: quantized_weight(
        QuantizedOps(library, 4, 128, zeros=torch.int16)
    ),
    "fp4": lambda library: quantized_weight(
        QuantizedOps(library, 4, 16, torch.float16, is_float=True)
    ),
    "e4m3": lambda library: float_weight(FloatOps(library, torch.float8_e4m3fn, 128)),
    "e5m2": lambda library: float_weight(FloatOps(library, torch.float8_e5m2, 64)),
    "table": lambda library: float_weight(FloatOps(library, torch.uint8, 64, TABLE)),
    **{
        kind: partial(gguf_weight, kind)
        for kind in ("Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
    },
}


def tolerance(kind: str, dtype: torch.dtype) -> float:
    rounds_x = kind.startswith("Q") or kind == "int8 by int8"
    return IN_EIGHT_BITS if rounds_x and dtype != torch.float32 else TOLERANCE[dtype]


def check(kind: str, rows: int, width: int, dtype: torch.dtype, batches: tuple[int, ...]) -> None:
    assert LIBRARY is not None
    plain, multiply = KINDS[kind](LIBRARY)(rows, width, dtype)
    x = torch.randn(max(batches), plain.shape[1]).to(dtype)
    single = torch.cat([multiply(row[None]) for row in x])
    exact = x.double() @ plain.T
    scale = x.double().norm(dim=1, keepdim=True) * plain.norm(dim=1)
    right = (single.double() - exact).abs() <= tolerance(kind, dtype) * scale
    assert right.all(), f"{rows} x {width}"
    for count in batches:
        assert torch.equal(multiply(x[-count:]), single[-count:]), f"{rows} x {width} by {count}"


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_right_and_equal_in_batches_of_few_and_many(isa: str, kind: str) -> None:
    check(kind, 81, 600, torch.bfloat16, FAST_BATCHES)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_right_and_equal_over_the_whole_grid(
    isa: str, kind: str, dtype: torch.dtype
) -> None:
    for rows in (1, 48, 64, 65, 192):
        for width in (8, 255, 256, 257, 520, 1024):
            torch.manual_seed(0)
            check(kind, rows, width, dtype, BATCHES)
