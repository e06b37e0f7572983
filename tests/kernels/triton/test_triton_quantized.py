"""Products with numbers of few bits in Triton are those of what they stand for, through the
interpreter.
"""

from __future__ import annotations

import pytest
import torch
from core_kernels.triton import row_ops, scaled_mm
from core_kernels.triton.int8_mm import ScaledIntOps
from core_kernels.triton.quantized import WHOLE_ROW, FloatOps, GroupedOps, QuantizedOps
from core_kernels.triton.quantized_rows import round_rows
from core_kernels.triton.row_quantizer import RowQuantizer
from core_kernels.triton.scaled_mm import ScaledFloatOps

from builtin_plugins.quant_methods.cpu_packed.floats import write_rows
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Layout, ScaledFloats

SHAPES = ((0, 5, 64), (1, 3, 24), (3, 70, 200), (70, 9, 128))
"""Rows of x, rows and columns of a weight."""
FOUR_BITS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def integers(
    rows: int, width: int, bits: int, group: int, zeros: bool
) -> tuple[GroupedOps, GroupedInts]:
    limit = 1 << (bits - 1)
    groups = -(-width // group)
    codes = torch.randint(-limit, limit, (rows, width), dtype=torch.int8)
    off = torch.randint(-limit, limit, (rows, groups), dtype=torch.int16) if zeros else None
    scales = (torch.rand(rows, groups) / limit).half()
    own = min(group, width)
    order = None if width % own == 0 else torch.arange(width) // own
    return QuantizedOps(bits, group, torch.float16, has_zeros=zeros), GroupedInts(
        codes, scales, off, order
    )


def floats(
    rows: int, width: int, kind: torch.dtype | None, group: int
) -> tuple[GroupedOps, ScaledFloats]:
    scales = torch.rand(rows, -(-width // group)) / 4
    if kind is None:
        values = (
            FOUR_BITS[torch.randint(0, 8, (rows, width))] * torch.randn(rows, width).sign()
        ).to(torch.float8_e4m3fn)
        layout = ScaledFloats(values, scales.bfloat16().float(), min(group, width))
        return QuantizedOps(4, group, torch.bfloat16, is_float=True), layout
    return FloatOps(kind, group), ScaledFloats(
        torch.randn(rows, width).to(kind), scales, min(group, width)
    )


CASES = {
    "int8 in rows": lambda rows, width: integers(rows, width, 8, WHOLE_ROW, False),
    "int8, groups of 24, zeros": lambda rows, width: integers(rows, width, 8, 24, True),
    "int4, groups of 32": lambda rows, width: integers(rows, width, 4, 32, False),
    "int4, groups of 128, zeros": lambda rows, width: integers(rows, width, 4, 128, True),
    "e4m3 in rows": lambda rows, width: floats(rows, width, torch.float8_e4m3fn, WHOLE_ROW),
    "e5m2, groups of 128": lambda rows, width: floats(rows, width, torch.float8_e5m2, 128),
    "e2m1, groups of 16": lambda rows, width: floats(rows, width, None, 16),
}


def packed(ops: GroupedOps, layout: Layout, memory: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weight, filled in two pieces."""
    rows, width = layout.shape
    weight = ops.empty(rows, width, torch.float32) if memory is None else memory
    for own in (slice(0, 2), slice(2, rows)):
        piece = layout.slice_rows(own)
        if isinstance(piece, ScaledFloats):
            write_rows(ops, weight, rows, own.start, piece)  # type: ignore[arg-type]
        else:
            assert isinstance(piece, GroupedInts)
            assert isinstance(ops, QuantizedOps)
            ops.pack_codes(weight, rows, own.start, piece.codes, piece.scales, piece.zeros)
    return weight


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Hold each number to a share of the largest: it is a sum of many."""
    share = 1e-5 if found.dtype is torch.float32 else 1e-2
    limit = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found.float(), expected, atol=share * limit, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_quantized_gemm_matches_plain_weight(name: str) -> None:
    for number, (count, rows, width) in enumerate(SHAPES):
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        ops, layout = CASES[name](rows, width)
        weight = packed(ops, layout)
        x = torch.randn(count, width + 3)[:, :width].to(dtype)
        found = ops.linear(x, weight, rows)
        expected = x.float() @ layout.dequantize().T
        assert found.dtype is dtype
        assert_near(found, expected)
        ids = torch.tensor([rows - 1, 0, 2])
        torch.testing.assert_close(
            ops.rows(weight, rows, width, ids), layout.dequantize()[ids], atol=1e-6, rtol=1e-6
        )


@pytest.mark.parametrize("name", ["int4, groups of 128, zeros", "e4m3 in rows"])
@pytest.mark.parametrize("chosen", [[], [3], [0, 0, 3, 3, 3, 1], [2] * 40])
def test_grouped_gemm_with_a_weight_per_row(name: str, chosen: list[int]) -> None:
    rows = 5
    width = 72
    made = [CASES[name](rows, width) for _ in range(4)]
    ops = made[0][0]
    weights = ops.empty(rows, width, torch.float32, 4)
    for memory, (_, layout) in zip(weights, made, strict=True):
        packed(ops, layout, memory)
    choices = torch.tensor(chosen, dtype=torch.int64)
    ordered = sorted(chosen)
    x = torch.randn(len(chosen), width)
    expected = [row @ made[which][1].dequantize().T for row, which in zip(x, ordered, strict=True)]
    found = ops.grouped(x, weights, rows, choices)
    assert_near(found, torch.stack(expected) if expected else found)


@pytest.mark.parametrize(("bits", "group"), [(8, 128), (4, 32)])
def test_rounding_error_is_half_a_step(bits: int, group: int) -> None:
    tensor = torch.randn(6, 200)
    ops = QuantizedOps(bits, group)
    weight = ops.empty(6, 200, torch.bfloat16)
    ops.pack(weight, 6, 0, tensor[:3])
    ops.pack(weight, 6, 3, tensor[3:])
    off = (ops.rows(weight, 6, 200, torch.arange(6)) - tensor).abs()
    limit = torch.stack(
        [piece.abs().amax(1) for piece in tensor.split(group, 1)], 1
    ).repeat_interleave(group, 1)[:, :200]
    assert (off <= limit / (250 if bits == 8 else 7.9)).all()


def test_mismatched_shapes_are_rejected() -> None:
    ops, layout = integers(4, 64, 4, 32, False)
    weight = ops.empty(4, 64, torch.float32)
    assert isinstance(ops, QuantizedOps)
    with pytest.raises(ValueError, match=r"scales: got \[4, 1\]; expected \[4, 2\]"):
        ops.pack_codes(weight, 4, 0, layout.codes, layout.scales[:, :1])
    zeros = torch.zeros(4, 2, dtype=torch.int16)
    with pytest.raises(ValueError, match=r"zeros: got \[4, 2\]; expected none"):
        ops.pack_codes(weight, 4, 0, layout.codes, layout.scales, zeros)
    with pytest.raises(ValueError, match="float8_e5m2 in a weight"):
        FloatOps(torch.float8_e4m3fn, 32).pack_codes(
            weight, 4, 0, torch.zeros(1, 64).to(torch.float8_e5m2), torch.ones(1, 2)
        )


@pytest.mark.parametrize("group", [WHOLE_ROW, 128])
def test_rows_are_rounded_with_a_scale_per_group(group: int) -> None:
    x = (torch.randn(4, 200) * torch.tensor([1e-9, 1.0, 7.0, 3.0])[:, None]).bfloat16()
    x[0, ::7] = 0.5  # far larger than the others
    x[1] = 0
    x[3, 5] = float("nan")
    values, scales = round_rows(x, group)[:2]
    assert scales.shape == (4, 1 if group == WHOLE_ROW else 2)
    assert group == WHOLE_ROW or scales.stride() == (1, 4)
    own = scales.repeat_interleave(min(group, 200), 1)[:, :200]
    expected = (x.float() / own.masked_fill(own == 0, 1)).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(values[:3].float(), expected[:3].float())
    assert values.float().abs().max() == 448
    found = values.float() * own
    assert found[3, 5].isnan()
    assert bool(found[3, 199].isnan()) == (group == WHOLE_ROW)


@pytest.mark.parametrize("group", [WHOLE_ROW, 128])
def test_rows_are_rounded_to_integers(group: int) -> None:
    x = (torch.randn(4, 200) * torch.tensor([1e-9, 1.0, 7.0, 3.0])[:, None]).bfloat16()
    x[1] = 0
    x[3, 5] = float("nan")
    values, scales = round_rows(x, group, torch.int8)[:2]
    own = scales.repeat_interleave(min(group, 200), 1)[:, :200]
    expected = (x.float() / own.masked_fill(own == 0, 1)).round().clamp(-127, 127)
    assert torch.equal(values[:3].float(), expected[:3])
    assert values.dtype is torch.int8
    assert values.abs().max() == 127
    assert (values.float() * own)[3, 5].isnan()


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("group", [WHOLE_ROW, 128])
@pytest.mark.parametrize("width", [144, 1168])
def test_norms_and_activations_write_what_rounding_their_results_gives(
    group: int, width: int, kind: torch.dtype
) -> None:
    inputs = RowQuantizer(group, kind)
    x = torch.randn(5, width + 8).bfloat16()[:, :width]  # rows with gaps between
    x[1] = 0
    x[2, 7] = float("nan")
    residual = torch.randn(5, width).bfloat16()
    weight = torch.randn(width).bfloat16()
    norm = weight, 1e-6, 1.0
    both = torch.cat([x, residual], 1)
    both[3, 5] = float("inf")
    expected_sum = row_ops.add_rms_norm(x, residual, *norm)
    found_sum = inputs.add_rms_norm(x, residual, *norm)
    torch.testing.assert_close(found_sum[1], expected_sum[1], rtol=0, atol=0, equal_nan=True)
    for found, expected in (
        (inputs.rms_norm(x, *norm), row_ops.rms_norm(x, *norm)),
        (found_sum[0], expected_sum[0]),
        (inputs.gated(both, "silu"), row_ops.gated(both, "silu")),
    ):
        rounded = round_rows(expected, group, kind)
        assert torch.equal(found.codes, rounded.codes)
        torch.testing.assert_close(found.scales, rounded.scales, rtol=0, atol=0, equal_nan=True)
        assert found.scales.stride() == rounded.scales.stride()


def test_activations_of_long_rows_with_one_scale_take_two_launches() -> None:
    x = torch.randn(1, 2 * (row_ops.MAX_GATED_BLOCK + 16)).bfloat16()
    found = RowQuantizer(WHOLE_ROW).gated(x, "relu")
    assert torch.equal(found.codes, round_rows(row_ops.gated(x, "relu"), WHOLE_ROW).codes)


def by_blocks(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Compute what torch does on a GPU for scales of 128 numbers in the required layout."""
    (count, width) = a.shape
    rows = b.shape[1]
    groups = width // 128
    assert (scale_a.shape, scale_b.shape) == ((count, groups), (groups, rows))
    assert b.stride(0) == 1
    assert scale_a.stride() == (1, count)
    assert scale_b.stride() == (rows, 1)
    left = a.float() * scale_a.repeat_interleave(128, 1)
    return (left @ (b.float() * scale_b.repeat_interleave(128, 0))).to(out_dtype)


@pytest.mark.parametrize("group", [WHOLE_ROW, 128])
def test_fp8_gemm_uses_scaled_mm(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 32
    width = 256
    _, layout = floats(rows, width, torch.float8_e4m3fn, group)
    ops = ScaledFloatOps(torch.float8_e4m3fn, group)
    weight = packed(ops, layout)
    x = torch.randn(2, 3, width).bfloat16()
    if group == 128:
        monkeypatch.setattr(torch, "_scaled_mm", by_blocks)
    values, scales = round_rows(x.view(6, width), group)[:2]
    rounded = values.float() * scales.repeat_interleave(min(group, width), 1)
    found = ops.linear(x, weight, rows)
    expected = (rounded @ layout.dequantize().T).view(2, 3, rows)
    assert_near(found, expected)


def test_inputs_stay_unquantized_without_scaled_mm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaled_mm, "round_rows", None)
    for rows, width, dtype, group in (
        (30, 64, torch.bfloat16, WHOLE_ROW),
        (32, 64, torch.float32, 128),
        (32, 64, torch.bfloat16, 32),
    ):
        _, layout = floats(rows, width, torch.float8_e4m3fn, group)
        ops = ScaledFloatOps(torch.float8_e4m3fn, group)
        x = torch.randn(2, width).to(dtype)
        found = ops.linear(x, packed(ops, layout), rows)
        assert_near(found, x.float() @ layout.dequantize().T)


@pytest.mark.parametrize(("count", "rows", "width"), [*SHAPES, (65, 130, 272)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_int8_gemm_multiplies_integers(
    count: int, rows: int, width: int, dtype: torch.dtype
) -> None:
    _, layout = integers(rows, width, 8, WHOLE_ROW, False)
    ops = ScaledIntOps(torch.float16)
    weight = packed(ops, layout)
    x = torch.randn(count, width + 3)[:, :width].to(dtype)
    values, scales = round_rows(x, WHOLE_ROW, torch.int8)[:2]
    sums = values.double() @ layout.codes.double().T
    expected = (sums.float() * scales * layout.scales.float().T).to(dtype)
    found = ops.linear(x, weight, rows)
    # The interpreter rounds to bfloat16 toward zero.
    assert dtype is torch.bfloat16 or torch.equal(found, expected)
    assert_near(found, expected.float())
    quantizer = ops.inputs(rows, width, dtype)
    assert quantizer is not None
    assert torch.equal(ops.linear(quantizer.round(x), weight, rows), found)
    wide = x.float()
    assert ops.inputs(rows, width, wide.dtype) is None
    assert_near(ops.linear(wide, weight, rows), wide @ layout.dequantize().T)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_real_model_weights(name: str) -> None:
    ops, layout = CASES[name](1024, 2048)
    x = torch.randn(5, 2048).bfloat16()
    found = ops.linear(x, packed(ops, layout), 1024)
    assert_near(found, x.float() @ layout.dequantize().T)
