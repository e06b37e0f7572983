"""Canonical layouts dequantize correctly, whole and in chunks; low-bit numbers unpack."""

from __future__ import annotations

import pytest
import torch

from builtin_plugins.quant_methods.stored import layouts
from builtin_plugins.quant_methods.stored.layouts import (
    GroupedInts,
    ScaledFloats,
    dequantize_chunks,
)
from builtin_plugins.quant_methods.stored.packing import (
    e8m0_to_float,
    to_signed,
    unpack_fp4,
    unpack_fp6,
    unpack_words,
)
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.model import pack_words


@pytest.mark.parametrize("bits", range(1, 9))
def test_unpack_words_of_straddling_numbers(bits: int) -> None:
    numbers = torch.randint(0, 1 << bits, (3, 70))
    assert torch.equal(unpack_words(pack_words(numbers, bits), bits, 70).long(), numbers)
    middle = 1 << (bits - 1)
    assert torch.equal(to_signed(numbers.to(torch.uint8), bits).long(), numbers - middle)
    with pytest.raises(ModelError, match=f"expected int32 words of 200 numbers of {bits} bits"):
        unpack_words(pack_words(numbers, bits), bits, 200)


def test_small_floats_unpack_to_equal_fp8() -> None:
    assert unpack_fp4(torch.tensor([0x21, 0xF7], dtype=torch.uint8)).float().tolist() == [
        0.5,
        1.0,
        6.0,
        -6.0,
    ]
    # One, the least, the largest and minus the largest, six bits each, in three bytes.
    for exponent_bits, codes, values in (
        (2, (8, 1, 31, 63), (1, 0.125, 7.5, -7.5)),
        (3, (12, 1, 31, 63), (1, 0.0625, 28, -28)),
    ):
        word = sum(code << (6 * index) for index, code in enumerate(codes))
        packed = torch.tensor([word & 255, word >> 8 & 255, word >> 16], dtype=torch.uint8)
        assert unpack_fp6(packed, exponent_bits).float().tolist() == list(values)
    assert e8m0_to_float(torch.tensor([127, 130, 120], dtype=torch.uint8)).tolist() == [
        1.0,
        8.0,
        2.0**-7,
    ]


def test_large_weight_is_dequantized_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "CHUNK_NUMBERS", 40)
    codes = torch.randint(-8, 8, (7, 16), dtype=torch.int8)
    scales = torch.rand(7, 4)
    zeros = torch.randint(-3, 3, (7, 4), dtype=torch.int16)
    expected = (codes.float() - zeros.repeat_interleave(4, 1)) * scales.repeat_interleave(4, 1)
    order = torch.arange(16) // 4
    for layout in (GroupedInts(codes, scales, zeros), GroupedInts(codes, scales, zeros, order)):
        found = list(dequantize_chunks(layout))
        assert [len(weight) for _, weight in found] == [2, 2, 2, 1]
        assert torch.equal(torch.cat([weight for _, weight in found]), expected)
    floats = ScaledFloats(torch.randn(7, 18).to(torch.float8_e4m3fn), torch.rand(7, 5), 4)
    assert torch.equal(
        torch.cat([weight for _, weight in dequantize_chunks(floats)]), floats.dequantize()
    )
    assert torch.equal(
        floats.dequantize()[:, 17], floats.values[:, 17].float() * floats.scales[:, 4]
    )
