"""On a GPU: quantized products and chunked recurrent layers equal the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_kernels.triton import block_scaled, chunked_scan
from core_kernels.triton.block_scaled import BlockScaledOps
from core_kernels.triton.int8_mm import ScaledIntOps
from core_kernels.triton.launching import INTERPRETED
from core_kernels.triton.quantized import WHOLE_ROW
from core_kernels.triton.quantized_rows import round_rows
from core_kernels.triton.scaled_mm import ScaledFloatOps

from core.models.ops import reference
from tests.kernels.triton.test_triton_quantized import (
    CASES,
    assert_near,
    floats,
    integers,
    packed,
)

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted; set TRITON_INTERPRET=0"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_quantized_linear_equals_plain_weight_on_gpu(name: str, dtype: torch.dtype) -> None:
    for count, rows, width in ((1, 3, 24), (3, 130, 200), (70, 512, 1024), (300, 96, 256)):
        ops, layout = CASES[name](rows, width)
        weight = packed(ops, layout).to(DEVICE)
        x = torch.randn(count, width).to(dtype)
        assert_near(ops.linear(x.to(DEVICE), weight, rows).cpu(), x.float() @ layout.dequantize().T)


@pytest.mark.parametrize("group", [WHOLE_ROW, 128])
def test_fp8_linear_uses_torch(group: int) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this device has no FP8 GEMM")
    rows = 256
    width = 512
    _, layout = floats(rows, width, torch.float8_e4m3fn, group)
    ops = ScaledFloatOps(torch.float8_e4m3fn, group)
    x = torch.randn(33, width).bfloat16()
    values, scales = round_rows(x.to(DEVICE), group)[:2]
    plain = (values.float() * scales.repeat_interleave(min(group, width), 1)).cpu()
    found = ops.linear(x.to(DEVICE), packed(ops, layout).to(DEVICE), rows)
    assert_near(found.cpu(), plain @ layout.dequantize().T)


def test_int8_linear_multiplies_integers() -> None:
    rows = 256
    width = 512
    _, layout = integers(rows, width, 8, WHOLE_ROW, False)
    ops = ScaledIntOps(torch.float16)
    for count in (1, 33, 300):
        x = torch.randn(count, width).bfloat16()
        values, scales = round_rows(x.to(DEVICE), WHOLE_ROW, torch.int8)[:2]
        rounded = (values.float() * scales).cpu()
        found = ops.linear(x.to(DEVICE), packed(ops, layout).to(DEVICE), rows)
        assert_near(found.cpu(), rounded @ layout.dequantize().T)


def test_mxfp4_linear_multiplies_blocks() -> None:
    """Below capability 10.0 Triton decodes the numbers."""
    rows = 256
    width = 544
    ops = BlockScaledOps()
    codes = torch.tensor([-12, -3, 0, 1, 8], dtype=torch.int8)[torch.randint(5, (rows, width))]
    scales = torch.exp2(torch.randint(-5, 2, (rows, width // 32)).float())
    weight = ops.empty(rows, width, torch.bfloat16)
    ops.pack_codes(weight, rows, 0, codes, scales)
    plain = codes.float() * scales.repeat_interleave(32, 1)
    for count in (1, 33, 300):
        x = torch.randn(count, width).bfloat16().to(DEVICE)
        rounded = block_scaled.decoded(block_scaled.round_rows(x), width).cpu()
        assert_near(ops.linear(x, weight.to(DEVICE), rows).cpu(), rounded @ plain.T)


def test_chunked_recurrent_layers_equal_reference_on_gpu() -> None:
    def same(scan: Any, truth: Any, given: tuple[torch.Tensor, ...]) -> None:
        for ours, theirs in zip(
            scan(*(each.to(DEVICE) for each in given)), truth(*given), strict=True
        ):
            torch.testing.assert_close(ours.cpu(), theirs, atol=1e-3, rtol=1e-3)

    write = torch.randn(2, 300, 1, 128)
    read = torch.randn(2, 300, 1, 128)
    step = torch.rand(2, 300, 4) / 9
    decay = -torch.rand(4) * 9
    given = torch.randn(2, 300, 4, 64), step, decay, write, read, torch.randn(2, 4, 64, 128)
    same(chunked_scan.ssd_scan, reference.ssd_scan, given)
    key = torch.nn.functional.normalize(torch.randn(2, 300, 2, 128), dim=-1)
    value = torch.randn(2, 300, 4, 128)
    decay = -torch.rand(2, 300, 4) / 9
    share = torch.rand(2, 300, 4)
    same(
        chunked_scan.delta_scan,
        reference.delta_scan,
        (key.flip(1), key, value, decay, share, torch.randn(2, 4, 128, 128)),
    )
