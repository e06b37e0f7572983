"""Weights of eight-bit floats and of codes of a table: every one exact, products right and alike in
any company.
"""

from __future__ import annotations

import pytest
import torch
from core_kernels.floats import KINDS, FloatOps
from core_kernels.library import load_library

LIBRARY = load_library()
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}
SIZES = [(1, 1), (7, 5), (129, 130), (70, 300)]
COUNTS = [0, 1, 7, 20]
TABLE = torch.tensor(
    [-1, -0.7, -0.5, -0.4, -0.3, -0.2, -0.1, 0, 0.0052, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1]
)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


FLOATS = [kind for kind in KINDS if kind.is_floating_point]


def ops_of(kind: torch.dtype, group: int, scales: torch.dtype = torch.float32) -> FloatOps:
    return FloatOps(LIBRARY, kind, group, TABLE if kind == torch.uint8 else None, scales=scales)


def stored(
    rows: int, width: int, group: int, kind: torch.dtype, *, in_powers: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return floats of all sizes, subnormal ones too, or codes, their scales, and the weight that
    they are in float32.

    `in_powers`: scales are powers of two.
    """
    scales = torch.rand(rows, -(-width // group)) + 0.1
    if in_powers:
        scales = torch.exp2((torch.rand(scales.shape) * 12 - 10).round())
    if kind == torch.uint8:
        values = torch.randint(0, 16, (rows, width)).to(kind)
        plain = TABLE[values.int()]
    else:
        values = (
            torch.randn(rows, width) * torch.exp2(torch.randint(-9, 5, (rows, width)).float())
        ).to(kind)
        plain = values.float()
    return values, scales, plain * scales.repeat_interleave(group, 1)[:, :width]


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        (torch.float8_e4m3fn, 128),
        (torch.float8_e4m3fn, 8),
        (torch.float8_e5m2, 32),
        (torch.uint8, 64),
        (torch.uint8, 8),
    ],
    ids=str,
)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float8_e8m0fnu], ids=str)
def test_float_gemm_matches_dequantized_weight_and_is_batch_invariant(
    isa: str, scale_dtype: torch.dtype, kind: torch.dtype, group: int
) -> None:
    ops = ops_of(kind, group, scale_dtype)
    for rows, width in SIZES:
        values, scales, plain = stored(
            rows, width, group, kind, in_powers=scale_dtype == torch.float8_e8m0fnu
        )
        weight = ops.empty(rows, width, torch.float32)
        for first, last in ((rows // 3, rows), (0, rows // 3)):
            ops.pack_codes(weight, rows, first, values[first:last], scales[first:last])
        assert torch.equal(ops.rows(weight, rows, width, torch.arange(rows)), plain)
        for dtype, tolerance in TOLERANCE.items():
            x = torch.randn(max(COUNTS), width).to(dtype)
            together = ops.linear(x, weight, rows)
            scale = x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
            assert (
                (together.double() - x.double() @ plain.double().T).abs() <= tolerance * scale
            ).all()
            for count in COUNTS:
                assert torch.equal(ops.linear(x[:count], weight, rows), together[:count])


@pytest.mark.parametrize(("kind", "group"), [(torch.uint8, 64), (torch.float8_e4m3fn, 8)], ids=str)
def test_int16_scales_are_fractions_of_the_row_factor(
    isa: str, kind: torch.dtype, group: int
) -> None:
    ops = ops_of(kind, group, torch.int16)
    for rows, width in SIZES:
        values, scales, _ = stored(rows, width, group, kind)
        scales *= (
            torch.where(torch.rand(scales.shape) < 0.1, -1, 1)
            * torch.exp2(-(torch.arange(rows) % 9.0))[:, None]
        )
        scales[rows // 2] = 0
        step = scales.abs().amax(1, keepdim=True) / 32767
        rounded_scales = (scales / torch.where(step == 0, 1, step)).round() * step
        numbers = TABLE[values.int()] if kind == torch.uint8 else values.float()
        plain = numbers * rounded_scales.repeat_interleave(group, 1)[:, :width]
        weight = ops.empty(rows, width, torch.float32)
        for first, last in ((rows // 3, rows), (0, rows // 3)):
            ops.pack_codes(weight, rows, first, values[first:last], scales[first:last])
        torch.testing.assert_close(
            ops.rows(weight, rows, width, torch.arange(rows)), plain, rtol=1e-6, atol=0
        )
        for dtype, tolerance in TOLERANCE.items():
            x = torch.randn(max(COUNTS), width).to(dtype)
            together = ops.linear(x, weight, rows)
            scale = x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
            least = torch.finfo(dtype).tiny
            assert (
                (together.double() - x.double() @ plain.double().T).abs()
                <= tolerance * scale + least
            ).all()
            for count in COUNTS:
                assert torch.equal(ops.linear(x[:count], weight, rows), together[:count])


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_every_float_code_decodes_as_torch(isa: str, kind: torch.dtype) -> None:
    values = torch.arange(256, dtype=torch.uint8).view(kind).repeat(16, 1)
    ops = FloatOps(LIBRARY, kind, 256)
    ones = torch.ones(16, 1)
    weight = ops.empty(16, 256, torch.float32)
    ops.pack_codes(weight, 16, 0, values, ones)
    assert torch.equal(
        ops.rows(weight, 16, 256, torch.tensor([3])).nan_to_num(7),
        values[3:4].float().nan_to_num(7),
    )
    finite = values.float().isfinite()
    ops.pack_codes(weight, 16, 0, torch.where(finite, values.float(), 0).to(kind), ones)
    for dtype in (torch.float32, torch.bfloat16):
        each = ops.linear(torch.eye(256, dtype=dtype), weight, 16)[:, 0]
        assert torch.equal(each, torch.where(finite, values.float(), 0)[0].to(dtype))


@pytest.mark.parametrize("nan", [0x7F, 0xFF])
def test_one_row_times_nan_and_subnormal_weights_equals_several(isa: str, nan: int) -> None:
    values = torch.randint(0, 8, (64, 128), dtype=torch.uint8)
    values += 128 * torch.randint(0, 2, values.shape, dtype=torch.uint8)
    ops = FloatOps(LIBRARY, torch.float8_e4m3fn, 64)
    weight = ops.empty(64, 128, torch.float32)
    x = torch.randn(3, 128) * torch.tensor([[1e-6], [1], [1e6]])
    for at in (None, 5, 100):
        if at is not None:
            values[40, at] = nan
        ops.pack_codes(weight, 64, 0, values.view(ops.kind), torch.ones(64, 2))
        together = ops.linear(x, weight, 64)
        alone = torch.cat([ops.linear(row[None], weight, 64) for row in x])
        assert torch.equal(alone.nan_to_num(7), together.nan_to_num(7))
        assert together.isnan().any(0).nonzero().tolist() == ([] if at is None else [[40]])


def test_table_codes_decode_in_the_dtype_of_x(isa: str) -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(16, 1)
    ops = ops_of(torch.uint8, 16)
    weight = ops.empty(16, 16, torch.float32)
    ops.pack_codes(weight, 16, 0, codes, torch.ones(16, 1))
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(
            ops.linear(torch.eye(16, dtype=dtype), weight, 16)[:, 3], TABLE.to(dtype)
        )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_grouped_gemm_uses_each_groups_weight(isa: str, kind: torch.dtype) -> None:
    ops = ops_of(kind, 32)
    weights = ops.empty(80, 64, torch.float32, 3)
    choices = torch.tensor([2, 0, 2, 0, 0, 2, 2, 2, 2, 0])
    for weight in weights:
        ops.pack_codes(weight, 80, 0, *stored(80, 64, 32, kind)[:2])
    x = torch.randn(10, 64).bfloat16()
    found = ops.grouped(x, weights, 80, choices)
    alone = [
        ops.linear(row[None], weights[index], 80)
        for row, index in zip(x, choices.sort().values, strict=True)
    ]
    assert torch.equal(found, torch.cat(alone))


def test_large_gemm_is_bitwise_invariant_to_threads(isa: str) -> None:
    ops = FloatOps(LIBRARY, torch.float8_e4m3fn, 128)
    values, scales, _ = stored(600, 256, 128, ops.kind)
    weight = ops.empty(600, 256, torch.float32)
    x = torch.randn(400, 256).bfloat16()
    ops.pack_codes(weight, 600, 0, values, scales)
    found = ops.linear(x, weight, 600)
    assert torch.equal(ops.linear(x[300:310], weight, 600), found[300:310])
    assert torch.equal(ops.linear(x[7:8], weight, 600), found[7:8])


def test_mismatched_shapes_are_rejected() -> None:
    ops = FloatOps(LIBRARY, torch.float8_e4m3fn, 32)
    weight = ops.empty(20, 10, torch.float32)
    with pytest.raises(ValueError, match="of floats of 8 bits of width 40"):
        ops.linear(torch.randn(3, 40), weight, 20)
    with pytest.raises(ValueError, match=r"float8_e5m2 .* of torch.float8_e4m3fn"):
        ops.pack_codes(weight, 20, 0, torch.zeros(20, 10).to(torch.float8_e5m2), torch.ones(20, 1))
    with pytest.raises(IndexError, match="expected 0 to 19"):
        ops.rows(weight, 20, 10, torch.tensor([20]))
    for kind, group in ((torch.float16, 32), (torch.float8_e4m3fn, 12), (torch.float8_e4m3fn, 512)):
        with pytest.raises(ValueError, match="in groups of"):
            FloatOps(LIBRARY, kind, group)
    with pytest.raises(ValueError, match="with no table: uint8 has one of 16"):
        FloatOps(LIBRARY, torch.uint8, 64)
