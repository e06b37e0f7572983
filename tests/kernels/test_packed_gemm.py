"""Products with packed and plain weights: right on every instruction set, and alike whatever is
computed with a row.
"""

from __future__ import annotations

import pytest
import torch
from core_kernels.library import load_library
from core_kernels.packed import MANY_ROWS, PackedOps

LIBRARY = load_library()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (4e-3, 4e-3)}
SIZES = [(1, 1), (7, 5), (16, 16), (64, 32), (100, 33), (129, 130), (192, 8)]
COUNTS = [0, 1, 2, 5, 6, 7, 13, 97]

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


@pytest.fixture
def ops(isa: str) -> PackedOps:
    """Return the operations on this instruction set."""
    assert LIBRARY is not None
    return PackedOps(LIBRARY)


def packed(ops: PackedOps, weight: torch.Tensor) -> torch.Tensor:
    """Return a plain weight packed, in two parts."""
    out = ops.empty(*weight.shape, weight.dtype)
    rows = len(weight)
    ops.pack(out, rows, rows // 3, weight[rows // 3 :])
    ops.pack(out, rows, 0, weight[: rows // 3])
    return out


def assert_product(
    found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    rtol, atol = TOLERANCE[x.dtype]
    torch.testing.assert_close(found.double(), exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_packed_weight_round_trips_and_multiplies(
    ops: PackedOps, size: tuple[int, int], dtype: torch.dtype
) -> None:
    weight = torch.randn(size).to(dtype)
    bias = torch.randn(size[0]).to(dtype)
    own = packed(ops, weight)
    ids = torch.randint(0, size[0], (11,))
    assert torch.equal(ops.rows(own, *size, ids), weight[ids])
    for count in COUNTS:
        x = torch.randn(count, size[1]).to(dtype)
        found = ops.linear(x, own, size[0], bias)
        assert_product(found, x, weight, bias)
        alone = [ops.linear(row[None], own, size[0], bias) for row in x]
        assert torch.equal(found, torch.cat([found[:0], *alone]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_weight_matches_packed_weight_bitwise(ops: PackedOps, dtype: torch.dtype) -> None:
    for size in SIZES:
        weight = torch.randn(size).to(dtype)
        x = torch.randn(9, size[1]).to(dtype)
        expected = ops.linear(x, packed(ops, weight), size[0])
        for plain in (
            weight,
            weight.T.contiguous().T,
            torch.cat((weight, weight), 1)[:, : size[1]],
        ):
            found = ops.plain(x, plain)
            assert found is not None
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strided_and_multi_dimensional_inputs(ops: PackedOps, dtype: torch.dtype) -> None:
    weight = torch.randn(40, 26).to(dtype)
    own = packed(ops, weight.T.contiguous().T)
    wide = torch.randn(2, 3, 31).to(dtype)
    for x in (
        wide[..., :26],
        wide[..., 3:29],
        wide.transpose(0, 1)[..., :26],
        torch.randn(26, 4).to(dtype).T,
    ):
        found = ops.linear(x, own, 40)
        assert found.shape == (*x.shape[:-1], 40)
        assert_product(found, x, weight, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repacked_rows_replace_old_rows(ops: PackedOps, dtype: torch.dtype) -> None:
    weight = torch.randn(70, 12).to(dtype)
    own = packed(ops, weight)
    weight[5:69] = torch.randn(64, 12).to(dtype)
    ops.pack(own, 70, 5, weight[5:69])
    assert torch.equal(ops.rows(own, 70, 12, torch.arange(70)), weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_grouped_gemm_uses_each_groups_weight(ops: PackedOps, dtype: torch.dtype) -> None:
    weights = torch.randn(5, 50, 23).to(dtype)
    own = ops.empty(50, 23, dtype, 5)
    for index, weight in enumerate(weights):
        ops.pack(own[index], 50, 0, weight)
    for choices in ([], [3], [0, 0, 4, 4, 4, 1, 0], [2] * 20):
        named = torch.tensor(choices, dtype=torch.int64)
        x = torch.randn(len(choices), 23).to(dtype)
        found = ops.grouped(x, own, 50, named[torch.randperm(len(choices))])
        alone = [
            ops.linear(row[None], own[index], 50)
            for row, index in zip(x, sorted(choices), strict=True)
        ]
        assert torch.equal(found, torch.cat([found[:0], *alone]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [23, 24])
def test_products_per_head_equal_those_of_single_rows(
    ops: PackedOps, dtype: torch.dtype, width: int
) -> None:
    weights = torch.randn(3, 50, width).to(dtype)
    own = ops.empty(50, width, dtype, 3)
    for index, weight in enumerate(weights):
        ops.pack(own[index], 50, 0, weight)
    for count in (*COUNTS, MANY_ROWS):
        x = torch.randn(count, 3, width + 8).to(dtype)[..., :width]
        found = ops.per_head(x, own, 50)
        assert found.shape == (count, 3, 50)
        for head, weight in enumerate(own):
            alone = [ops.linear(row[None], weight, 50) for row in x[:, head]]
            assert torch.equal(found[:, head], torch.cat([found[:0, head], *alone]))


def test_mismatched_shapes_are_rejected(ops: PackedOps) -> None:
    own = packed(ops, torch.randn(20, 10))
    with pytest.raises(ValueError, match="does not fit"):
        ops.linear(torch.randn(3, 11), own, 20)
    with pytest.raises(ValueError, match="does not fit"):
        ops.linear(torch.randn(3, 10).bfloat16(), own, 20)
    for ids in ([-1], [0, 20]):
        with pytest.raises(IndexError, match="expected 0 to 19"):
            ops.rows(own, 20, 10, torch.tensor(ids))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_gemm_is_bitwise_invariant_to_threads(ops: PackedOps, dtype: torch.dtype) -> None:
    weight = torch.randn(520, 144).to(dtype)
    x = torch.randn(800, 144).to(dtype)
    own = packed(ops, weight)
    found = ops.linear(x, own, 520)
    assert_product(found[::97], x[::97], weight, None)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(ops.linear(x, own, 520), found)
        assert torch.equal(ops.linear(x[300:420], own, 520), found[300:420])
    finally:
        torch.set_num_threads(threads)
