"""Products of NVFP4, weights and inputs, are those of their decoded numbers."""

from __future__ import annotations

import pytest
import torch
from core_kernels.triton.block_scaled import decoded
from core_kernels.triton.nvfp4 import NvFp4Ops, round_rows

from builtin_plugins.quant_methods.cpu_packed.floats import write_rows
from builtin_plugins.quant_methods.stored.activations import ActivationScheme
from builtin_plugins.quant_methods.stored.layouts import ScaledFloats
from tests.kernels.triton.alignment_cases import LAYOUTS
from tests.kernels.triton.interpreted_scales import read_e4m3_scales
from tests.kernels.triton.test_kernels_compile import run_compiled
from tests.kernels.triton.test_triton_quantized import FOUR_BITS

SLOW = pytest.mark.slow
SHAPES = (
    (0, 5, 64),
    (1, 3, 32),
    (3, 70, 200),
    pytest.param(70, 9, 128, marks=SLOW),
    pytest.param(17, 130, 320, marks=SLOW),
)


@pytest.fixture(autouse=True)
def _e4m3_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    read_e4m3_scales(monkeypatch)


def weights(rows: int, width: int) -> ScaledFloats:
    generator = torch.Generator().manual_seed(rows)
    signs = torch.randint(0, 2, (rows, width), generator=generator) * 2.0 - 1
    values = FOUR_BITS[torch.randint(0, 8, (rows, width), generator=generator)] * signs
    scales = torch.rand(rows, -(-width // 16), generator=generator) * 100
    scales = scales.to(torch.float8_e4m3fn).float()
    factors = torch.rand(rows, 1, generator=generator) + 0.01
    return ScaledFloats(values.to(torch.float8_e4m3fn), scales, 16, global_scales=factors)


@pytest.mark.parametrize(("count", "rows", "width"), SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_product_is_that_of_decoded_numbers(count: int, rows: int, width: int, layout: str) -> None:
    ops = NvFp4Ops()
    stored = weights(rows, width)
    weight = ops.empty(rows, width, torch.bfloat16)
    for own in (slice(0, 2), slice(2, rows)):
        write_rows(ops, weight, rows, own.start, stored.slice_rows(own))  # type: ignore[arg-type]
    plain = stored.dequantize()
    ids = torch.tensor([rows - 1, 0])
    assert torch.equal(ops.rows(weight, rows, width, ids), plain[ids])
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = ops.linear(LAYOUTS[layout](x), weight, rows)
    expected = decoded(round_rows(x), width) @ plain.T
    torch.testing.assert_close(
        found.float(), expected, rtol=1e-2, atol=1e-2 * float(plain.abs().max())
    )
    torch.testing.assert_close(ops.linear(x.float(), weight, rows), x.float() @ plain.T)


@pytest.mark.parametrize("width", [200, pytest.param(4112, marks=SLOW)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_rounded_as_checkpoints_specify(layout: str, width: int) -> None:
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[1] *= torch.exp2(torch.arange(width) // 16 % 23 - 12)  # scales of e4m3 below normal ones
    x[2, :64] = 0
    x[3] = 0
    found = decoded(round_rows(LAYOUTS[layout](x)), width)
    expected = ActivationScheme("fp4", 16, scale_kind="e4m3").round(x.float())
    # A number halfway between two codes may go to either: the quotients' last bits differ.
    differs = (found - expected).abs() > 1e-6 * expected.abs()
    assert differs.sum() <= 2 * x.numel() // 1000
    torch.testing.assert_close(found, expected, rtol=0.5, atol=0.0)


def test_rows_with_a_number_that_is_none_are_none() -> None:
    x = torch.ones(2, 64).bfloat16()
    x[0, 5] = float("inf")
    found = decoded(round_rows(x), 64)
    assert found[0].isnan().all()
    assert torch.equal(found[1], torch.ones(64))


def test_scales_of_other_groups_are_rejected() -> None:
    ops = NvFp4Ops()
    weight = ops.empty(2, 64, torch.bfloat16)
    codes = torch.zeros(2, 64, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"scales: got \[2, 1\]; expected \[2, 4\]"):
        ops.pack_codes(weight, 2, 0, codes, torch.ones(2, 1), factors=torch.ones(2, 1))


@SLOW
def test_devices_multiply_scales_of_e4m3_in_their_matrix_units() -> None:
    done = run_compiled("tests.kernels.triton.nvfp4_products")
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert found == {
        "sm_90": "wgmma",
        "sm_100": "tcgen05.mma mxf4nvf4",
        "sm_120": "mma.sync mxf4nvf4",
    }
