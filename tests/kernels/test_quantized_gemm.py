"""Weights of eight and four bits: as near as their scale says, and products that are right and
alike in any company.
"""

from __future__ import annotations

import pytest
import torch
from core_kernels.large_pages import LINE, LargePages
from core_kernels.library import load_library
from core_kernels.quantized import FOUR_BIT_FLOATS, ZEROS, QuantizedOps
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.quant_methods.rtn.torch_ops import TorchOps

LIBRARY = load_library()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 3e-4, torch.bfloat16: 8e-3, torch.float16: 2e-3}
SIZES = [(1, 1), (7, 5), (16, 16), (64, 32), (100, 33), (129, 130), (192, 8), (70, 300)]
COUNTS = [0, 1, 2, 3, 4, 7, 13, 40]
KINDS = [(8, 128), (8, 32), (4, 32), (4, 128)]

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


def packed(ops: QuantizedOps, weight: torch.Tensor) -> torch.Tensor:
    """Return a plain weight rounded, in two parts."""
    out = ops.empty(*weight.shape, weight.dtype)
    rows = len(weight)
    ops.pack(out, rows, rows // 3, weight[rows // 3 :])
    ops.pack(out, rows, 0, weight[: rows // 3])
    return out


def assert_rounded(found: torch.Tensor, weight: torch.Tensor, bits: int, group: int) -> None:
    """Assert that each number is up to half a step off, or where four bits end above, a step."""
    for column in range(0, weight.shape[1], group):
        own, exact = (part[:, column : column + group].double() for part in (found, weight))
        furthest = exact.abs().amax(1, keepdim=True)
        step = furthest / (127 if bits == 8 else 8) * (1 + 2**-7)
        assert ((own - exact).abs() <= step * (0.51 if bits == 8 else 1.03)).all()
        inside = exact.abs() < 7 / 8 * furthest
        assert ((own - exact).abs() <= step * 0.51)[inside].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_quantized_gemm_matches_dequantized_weight_and_is_batch_invariant(
    isa: str, kind: tuple[int, int], dtype: torch.dtype
) -> None:
    ops = QuantizedOps(LIBRARY, *kind)
    for size in SIZES:
        weight = torch.randn(size).to(dtype)
        own = packed(ops, weight)
        plain = ops.rows(own, *size, torch.arange(size[0]))
        assert_rounded(plain, weight, *kind)
        for count in COUNTS:
            x = torch.randn(count, size[1]).to(dtype)
            found = ops.linear(x, own, size[0])
            scale = x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
            off = (found.double() - x.double() @ plain.double().T).abs()
            assert (off <= TOLERANCE[dtype] * scale).all()
            alone = [ops.linear(row[None], own, size[0]) for row in x]
            assert torch.equal(found, torch.cat([found[:0], *alone]))


@pytest.mark.parametrize("number", [32639.0, -32384.0], ids=["both bytes 127", "low byte -128"])
@pytest.mark.parametrize("is_float", [False, True])
def test_integer_sums_hold_the_largest_products(isa: str, is_float: bool, number: float) -> None:
    ops = QuantizedOps(LIBRARY, 4, 32, is_float=is_float)
    codes = torch.full((64, 256), 12 if is_float else 7, dtype=torch.int8)
    weight = ops.empty(64, 256, torch.float32)
    ops.pack_codes(weight, 64, 0, codes, torch.ones(64, 8))
    x = torch.full((1, 256), number)
    exact = (x.double() @ codes.double().T).float()
    torch.testing.assert_close(ops.linear(x, weight, 64), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_gemm_matches_across_instruction_sets(isa: str, bits: int) -> None:
    assert LIBRARY is not None
    ops = QuantizedOps(LIBRARY, bits, 32)
    weight = torch.randn(70, 72)
    x = torch.randn(9, 72)
    own = packed(ops, weight)
    rows = ops.rows(own, 70, 72, torch.arange(70))
    product = ops.linear(x, own, 70)
    LIBRARY.core_kernels_use(b"generic")
    assert torch.equal(ops.rows(packed(ops, weight), 70, 72, torch.arange(70)), rows)
    torch.testing.assert_close(ops.linear(x, own, 70), product, rtol=1e-6, atol=1e-5)


PLACED = {
    "8 bits": {"bits": 8},
    "8 bits with zeros": {"bits": 8, "zeros": torch.int16},
    "4 bits": {"bits": 4},
    "4 bits with zeros": {"bits": 4, "zeros": torch.int16},
    "8 bits with zeros that are no integers": {"bits": 8, "zeros": torch.float16},
    "4 bits with zeros that are no integers": {"bits": 4, "zeros": torch.float16},
    "4 bits, floats": {"bits": 4, "is_float": True},
}


def zero_points(ops: QuantizedOps, shape: tuple[int, int]) -> torch.Tensor | None:
    """Return some that are packed exactly: integers, or halves and quarters of the codes' range."""
    top = 1 << (ops.bits - 1)
    zeros = torch.randint(-4 * top, 4 * top, shape) / 4
    return {None: None, torch.int16: zeros.short(), torch.float16: zeros}[ops.zeros]


@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PLACED)
def test_packed_codes_and_scales_round_trip(isa: str, name: str, scales: torch.dtype) -> None:
    ops = QuantizedOps(LIBRARY, group=32, scales=scales, **PLACED[name])  # type: ignore[arg-type]
    top = 1 << (ops.bits - 1)
    for rows, width in ((7, 40), (65, 256), (130, 72)):
        groups = (rows, -(-width // 32))
        codes = torch.randint(-top, top, (rows, width), dtype=torch.int8)
        if ops.is_float:
            codes = (
                torch.tensor(FOUR_BIT_FLOATS)[codes.abs().long() % 8].to(torch.int8) * codes.sign()
            )
        factors = torch.rand(groups).to(scales)
        zeros = zero_points(ops, groups)
        weight = ops.empty(rows + 3, width, torch.float32)
        ops.pack_codes(weight, rows + 3, 3, codes, factors, zeros)
        ops.pack_codes(
            weight, rows + 3, 0, codes[:3], factors[:3], None if zeros is None else zeros[:3]
        )
        off, own = (
            0 if part is None else part.float().repeat_interleave(32, 1)[:, :width]
            for part in (zeros, factors)
        )
        plain = (codes.float() - off) * own
        assert torch.equal(ops.rows(weight, rows + 3, width, torch.arange(3, rows + 3)), plain)
        x = torch.randn(40, width)
        found = ops.linear(x, weight, rows + 3)[:, 3:]
        exact = x.double() @ plain.double().T
        assert (
            (found - exact).abs()
            <= 3e-4 * x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
        ).all()
        assert torch.equal(ops.linear(x[5:6], weight, rows + 3)[0, 3:], found[5])
        order = torch.randperm(width).int()
        assert torch.equal(
            ops.linear(x, weight, rows + 3, order), ops.linear(x[:, order], weight, rows + 3)
        )
    with pytest.raises(ValueError, match=r"codes of torch.int8 .* in groups of 32"):
        ops.pack_codes(weight, rows + 3, 0, codes, factors[:, 1:], zeros)
    with pytest.raises(ValueError, match="zero points: "):
        ops.pack_codes(
            weight, rows + 3, 0, codes, factors, None if ops.zeros else torch.zeros(groups)
        )


def test_e4m3_scales_have_row_factors(isa: str) -> None:
    ops = QuantizedOps(LIBRARY, 4, 16, torch.float8_e4m3fn, is_float=True)
    for rows, width in ((7, 40), (65, 256), (130, 72)):
        groups = (rows, -(-width // 16))
        codes = torch.tensor(FOUR_BIT_FLOATS)[torch.randint(0, 8, (rows, width))].to(torch.int8)
        codes *= torch.randint(0, 2, codes.shape, dtype=torch.int8) * 2 - 1
        scales = torch.randint(0, 256, groups, dtype=torch.uint8).view(torch.float8_e4m3fn)
        scales = torch.where(
            scales.float().isfinite(), scales.float(), 0
        )  # every one of them, negative and subnormal, too
        factors = torch.rand(rows, 1) + 0.01
        weight = ops.empty(rows + 3, width, torch.float32)
        ops.pack_codes(weight, rows + 3, 3, codes, scales, factors=factors)
        ops.pack_codes(weight, rows + 3, 0, codes[:3], scales[:3], factors=factors[:3])
        plain = codes.float() * (scales * factors).repeat_interleave(16, 1)[:, :width]
        assert torch.equal(ops.rows(weight, rows + 3, width, torch.arange(3, rows + 3)), plain)
        x = torch.randn(40, width)
        found = ops.linear(x, weight, rows + 3)[:, 3:]
        exact = x.double() @ plain.double().T
        assert (
            (found - exact).abs()
            <= 3e-4 * x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
        ).all()
        for count in (1, 3, 17):
            assert torch.equal(ops.linear(x[:count], weight, rows + 3)[:, 3:], found[:count])
    unknown = torch.tensor([[0x7F] * groups[1]] * rows, dtype=torch.uint8).view(torch.float8_e4m3fn)
    ops.pack_codes(weight, rows + 3, 3, codes, unknown, factors=factors)
    assert ops.linear(x, weight, rows + 3)[:, 3:].isnan().all()
    with pytest.raises(ValueError, match="row factors: got none; expected 130"):
        ops.pack_codes(weight, rows + 3, 3, codes, scales)
    whole = QuantizedOps(LIBRARY, 4, 32)
    with pytest.raises(ValueError, match=r"row factors: got \[1\]; expected none"):
        whole.pack_codes(
            whole.empty(1, 32, torch.float32),
            1,
            0,
            codes[:1, :32],
            scales[:1, :1],
            factors=torch.ones(1),
        )
    with pytest.raises(ValueError, match=r"scales of torch\.float32; they are of one of"):
        QuantizedOps(LIBRARY, 4, 32, torch.float32)
    for small in (torch.float8_e4m3fn, torch.float8_e8m0fnu):
        with pytest.raises(ValueError, match="with integer codes; expected bfloat16"):
            QuantizedOps(LIBRARY, 4, 32, small)


def test_power_of_two_scales_take_one_byte(isa: str) -> None:
    ops = QuantizedOps(LIBRARY, 4, 32, torch.float8_e8m0fnu, is_float=True)
    for rows, width in ((7, 40), (65, 256), (130, 72)):
        groups = (rows, -(-width // 32))
        codes = torch.tensor(FOUR_BIT_FLOATS)[torch.randint(0, 8, (rows, width))].to(torch.int8)
        codes *= torch.randint(0, 2, codes.shape, dtype=torch.int8) * 2 - 1
        scales = torch.randint(-20, 4, groups).float().exp2()
        scales[0] = 0
        weight = ops.empty(rows, width, torch.float32)
        ops.pack_codes(weight, rows, 0, codes, scales)
        plain = codes.float() * scales.repeat_interleave(32, 1)[:, :width]
        assert torch.equal(ops.rows(weight, rows, width, torch.arange(rows)), plain)
        x = torch.randn(40, width)
        found = ops.linear(x, weight, rows)
        exact = x.double() @ plain.double().T
        assert (
            (found - exact).abs()
            <= 3e-4 * x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
        ).all()
        for count in (1, 3, 17):
            assert torch.equal(ops.linear(x[:count], weight, rows), found[:count])
    # All that float32 has whole; what is smaller is nothing, what is not finite is not finite.
    codes = torch.ones(254, 32, dtype=torch.int8)
    powers = torch.arange(-126, 128).float().exp2()[:, None]
    weight = ops.empty(254, 32, torch.float32)
    ops.pack_codes(weight, 254, 0, codes, powers)
    assert torch.equal(ops.rows(weight, 254, 32, torch.arange(254)), powers.expand(254, 32))
    ops.pack_codes(weight, 254, 0, codes, torch.tensor([[2.0**-127]] + [[torch.inf]] * 253))
    found = ops.rows(weight, 254, 32, torch.arange(254))
    assert (found[0] == 0).all()
    assert not found[1:].isfinite().any()


def test_pack_rejects_formats_that_cannot_be_rounded(isa: str) -> None:
    for ops in (
        QuantizedOps(LIBRARY, 4, 32, is_float=True),
        QuantizedOps(LIBRARY, 8, 32, zeros=torch.int16),
    ):
        with pytest.raises(ValueError, match="rounded to integers without zero points"):
            ops.pack(ops.empty(16, 32, torch.float32), 16, 0, torch.zeros(16, 32))


@pytest.mark.parametrize("name", [name for name in PLACED if name not in ("8 bits", "4 bits")])
def test_grouped_gemm_uses_each_groups_codes(isa: str, name: str) -> None:
    ops = QuantizedOps(LIBRARY, group=32, **PLACED[name])  # type: ignore[arg-type]
    weights = ops.empty(80, 64, torch.float32, 3)
    choices = torch.tensor([2, 0, 2, 0, 0, 2, 2])
    for weight in weights:
        codes = torch.randint(-3, 4, (80, 64)).to(torch.int8)
        ops.pack_codes(weight, 80, 0, codes, torch.rand(80, 2), zero_points(ops, (80, 2)))
    x = torch.randn(7, 64).bfloat16()
    found = ops.grouped(x, weights, 80, choices)
    alone = [
        ops.linear(row[None], weights[index], 80)
        for row, index in zip(x, choices.sort().values, strict=True)
    ]
    assert torch.equal(found, torch.cat(alone))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_torch_fallback_matches_kernels(kind: tuple[int, int]) -> None:
    torch.manual_seed(1)
    ops = QuantizedOps(LIBRARY, *kind)
    plain = TorchOps(*kind)
    rows = 37
    width = 90
    weight = torch.randn(rows, width)
    x = torch.randn(5, width)
    ids = torch.tensor([36, 0, 7])
    own = packed(ops, weight)
    other = plain.empty(rows, width, weight.dtype)
    plain.pack(other, rows, 20, weight[20:])
    plain.pack(other, rows, 0, weight[:20])
    assert own.nbytes >= other.nbytes
    torch.testing.assert_close(plain.rows(other, rows, width, ids), ops.rows(own, rows, width, ids))
    torch.testing.assert_close(
        plain.linear(x, other, rows), ops.linear(x, own, rows), rtol=1e-3, atol=2e-3
    )


@settings(max_examples=60, deadline=None)
@given(
    numbers=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=70),
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([1.0, 1e-6]),
)
def test_rounding_error_is_within_half_a_scale(
    numbers: list[float], kind: tuple[int, int], size: float
) -> None:
    weight = torch.tensor([numbers]) * size
    weight[weight.abs() < 1e-30] = 0
    ops = QuantizedOps(LIBRARY, *kind)
    assert_rounded(ops.rows(packed(ops, weight), *weight.shape, torch.tensor([0])), weight, *kind)


@pytest.mark.parametrize("bits", [8, 4])
def test_strided_inputs_and_weights(isa: str, bits: int) -> None:
    ops = QuantizedOps(LIBRARY, bits, 32)
    weight = torch.randn(40, 26)
    own = packed(ops, weight)
    turned = packed(ops, weight.T.contiguous().T)
    wide = torch.randn(2, 3, 31)
    for x in (wide[..., :26], wide.transpose(0, 1)[..., 3:29], torch.randn(26, 4).T):
        found = ops.linear(x, own, 40)
        assert found.shape == (*x.shape[:-1], 40)
        assert torch.equal(found, ops.linear(x.contiguous(), turned, 40))


@pytest.mark.parametrize("bits", [8, 4])
def test_grouped_gemm_uses_each_groups_weight(isa: str, bits: int) -> None:
    ops = QuantizedOps(LIBRARY, bits, 32)
    weights = torch.randn(5, 50, 23)
    own = ops.empty(50, 23, torch.float32, 5)
    for index, weight in enumerate(weights):
        ops.pack(own[index], 50, 0, weight)
    for choices in ([], [3], [0, 0, 4, 4, 4, 1, 0], [2] * 20):
        x = torch.randn(len(choices), 23)
        found = ops.grouped(
            x, own, 50, torch.tensor(choices, dtype=torch.int64)[torch.randperm(len(choices))]
        )
        alone = [
            ops.linear(row[None], own[index], 50)
            for row, index in zip(x, sorted(choices), strict=True)
        ]
        assert torch.equal(found, torch.cat([found[:0], *alone]))


def of_eight_bits(x: torch.Tensor) -> torch.Tensor:
    """Return float64 x, with 127 steps as the largest magnitude of each row."""
    own = x.double()
    steps = own.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (own / steps).round() * steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("zero_type", ZEROS, ids=str)
def test_w8a8_rows_have_one_scale_and_are_batch_invariant(
    isa: str, dtype: torch.dtype, zero_type: torch.dtype | None
) -> None:
    ops = QuantizedOps(LIBRARY, 8, 32, torch.float16, zeros=zero_type, x_bits=8)
    for rows, width in ((70, 300), (128, 72)):
        codes = torch.randint(-128, 128, (rows, width), dtype=torch.int8)
        scales = torch.rand(rows, -(-width // 32)) / 100
        zeros = zero_points(ops, tuple(scales.shape))
        own = ops.empty(rows, width, dtype)
        ops.pack_codes(own, rows, 0, codes, scales, zeros)
        plain = ops.rows(own, rows, width, torch.arange(rows))
        x = torch.randn(40, width).to(dtype)
        found = ops.linear(x, own, rows)
        bound = TOLERANCE[dtype] * x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
        assert ((found.double() - of_eight_bits(x) @ plain.double().T).abs() <= bound).all()
        for count in COUNTS[1:]:
            assert torch.equal(ops.linear(x[-count:], own, rows), found[-count:])
        exactly = QuantizedOps(LIBRARY, 8, 32, torch.float16, zeros=zero_type)
        assert torch.equal(ops.linear(x.float(), own, rows), exactly.linear(x.float(), own, rows))
        assert not torch.equal(exactly.linear(x, own, rows), found)


@pytest.mark.parametrize("bits", [8, 4])
def test_large_gemm_is_bitwise_invariant_to_threads(isa: str, bits: int) -> None:
    ops = QuantizedOps(LIBRARY, bits, 128)
    weight = torch.randn(1100, 144)
    x = torch.randn(400, 144)
    own = packed(ops, weight)
    found = ops.linear(x, own, 1100)
    assert torch.equal(ops.linear(x[300:310], own, 1100), found[300:310])
    assert torch.equal(ops.linear(x[7:8], own, 1100), found[7:8])


def test_nan_inputs_give_nan_outputs(isa: str) -> None:
    ops = QuantizedOps(LIBRARY, 8, 32)
    own = packed(ops, torch.ones(3, 64))
    x = torch.zeros(4, 64)
    x[0, 1] = float("nan")
    x[1, 40] = float("inf")
    assert ops.linear(x, own, 3).isfinite().all(1).tolist() == [False, False, True, True]


def test_mismatched_shapes_are_rejected() -> None:
    ops = QuantizedOps(LIBRARY, 8, 32)
    own = packed(ops, torch.randn(20, 10))
    with pytest.raises(ValueError, match="no weight of 8 bits of width 40"):
        ops.linear(torch.randn(3, 40), own, 20)
    with pytest.raises(IndexError, match="expected 0 to 19"):
        ops.rows(own, 20, 10, torch.tensor([0, 20]))
    with pytest.raises(
        ValueError, match="rows of 8 bits by weights of 4: both are 8, or rows are of 16"
    ):
        QuantizedOps(LIBRARY, 4, 32, x_bits=8)
    for bits, group in ((5, 32), (4, 12), (8, 0), (8, 512)):
        with pytest.raises(ValueError, match="bits are 4 or 8"):
            QuantizedOps(LIBRARY, bits, group)


def test_large_pages_allocations_do_not_overlap() -> None:
    pages = LargePages(LIBRARY)
    taken = [pages.allocate(size) for size in (1, 100, 64, 5 << 20, 40 << 20, 7)]
    for index, memory in enumerate(taken):
        memory.fill_(index)
    assert all((memory == index).all() for index, memory in enumerate(taken))
    assert all(memory.data_ptr() % LINE == 0 for memory in taken)
