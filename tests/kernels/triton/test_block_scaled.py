"""Products of four-bit floats with a shared exponent are those of their decoded numbers."""

from __future__ import annotations

import pytest
import torch
from core_kernels.triton.block_scaled import BlockScaledOps, decoded, round_rows
from core_kernels.triton.nvfp4 import NvFp4Ops

from builtin_plugins.quant_methods.cpu_packed.floats import write_rows
from builtin_plugins.quant_methods.stored.layouts import ScaledFloats
from tests.kernels.triton.alignment_cases import LAYOUTS
from tests.kernels.triton.test_triton_quantized import FOUR_BITS

SHAPES = ((0, 5, 64), (1, 3, 32), (3, 70, 200), (70, 9, 128), (17, 130, 320))


def weights(rows: int, width: int) -> ScaledFloats:
    generator = torch.Generator().manual_seed(rows)
    signs = torch.randint(0, 2, (rows, width), generator=generator) * 2.0 - 1
    values = FOUR_BITS[torch.randint(0, 8, (rows, width), generator=generator)] * signs
    exponents = torch.randint(-9, 3, (rows, -(-width // 32)), generator=generator)
    return ScaledFloats(values.to(torch.float8_e4m3fn), torch.exp2(exponents.float()), 32)


@pytest.mark.parametrize(("count", "rows", "width"), SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_product_is_that_of_decoded_numbers(count: int, rows: int, width: int, layout: str) -> None:
    lay = LAYOUTS[layout]
    ops = BlockScaledOps()
    stored = weights(rows, width)
    weight = ops.empty(rows, width, torch.bfloat16)
    for own in (slice(0, 2), slice(2, rows)):
        write_rows(ops, weight, rows, own.start, stored.slice_rows(own))  # type: ignore[arg-type]
    plain = stored.dequantize()
    ids = torch.tensor([rows - 1, 0])
    assert torch.equal(ops.rows(weight, rows, width, ids), plain[ids])
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = ops.linear(lay(x), weight, rows)
    rounded = decoded(round_rows(x), width)
    expected = rounded @ plain.T
    torch.testing.assert_close(
        found.float(), expected, rtol=1e-2, atol=1e-2 * float(plain.abs().max())
    )
    torch.testing.assert_close(ops.linear(x.float(), weight, rows), x.float() @ plain.T)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_rounded_to_the_nearest_floats(layout: str) -> None:
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[1] *= torch.exp2(torch.arange(200) % 7 - 3)
    x[2, :64] = 0
    found = decoded(round_rows(LAYOUTS[layout](x)), 200)
    for start in range(0, 200, 32):
        part = x[:, start : start + 32].float()
        largest = part.abs().amax(1, keepdim=True)
        scale = torch.where(largest > 0, torch.exp2(largest.log2().floor() - 2), 1)
        near = (part.abs() / scale)[..., None].sub(FOUR_BITS).abs().min(-1).values
        off = (part - found[:, start : start + 32]).abs() / scale
        torch.testing.assert_close(off, near)


def test_ties_round_to_even_codes() -> None:
    ties = torch.tensor([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -5.0, 7.0]])
    found = decoded(round_rows(ties.bfloat16()), 10)
    assert found.tolist() == [[0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.0, -4.0, 6.0]]


def test_groups_with_a_number_that_is_none_are_none() -> None:
    x = torch.ones(1, 64).bfloat16()
    x[0, 5] = float("nan")
    exponents = round_rows(x).scales
    assert exponents[0, :2].tolist() == [255, 125]


def test_scales_of_other_groups_are_rejected() -> None:
    ops = BlockScaledOps()
    weight = ops.empty(2, 64, torch.bfloat16)
    with pytest.raises(ValueError, match=r"scales: got \[2, 1\]; expected \[2, 2\]"):
        ops.pack_codes(weight, 2, 0, torch.zeros(2, 64, dtype=torch.int8), torch.ones(2, 1))


@pytest.mark.parametrize(("ops", "factors"), [(BlockScaledOps(), 2), (NvFp4Ops(), 0)])
def test_only_nvfp4_has_factors_of_rows(ops: BlockScaledOps, factors: int) -> None:
    codes = torch.zeros(2, 64, dtype=torch.int8)
    scales = torch.ones(2, 64 // ops.group)
    own = torch.ones(factors, 1) if factors else None
    with pytest.raises(ValueError, match=f"factors: got {factors}; expected {2 - factors}"):
        ops.pack_codes(ops.empty(2, 64, torch.bfloat16), 2, 0, codes, scales, factors=own)
