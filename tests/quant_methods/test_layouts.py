"""The canonical layouts mean what they say, whole and in pieces, and numbers of few bits come out
of words and bytes.
"""

from __future__ import annotations

import pytest
import torch

from builtin_plugins.quant_methods.stored import layouts
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, ScaledFloats, pieces
from builtin_plugins.quant_methods.stored.packing import (
    centred,
    four_bit_floats,
    powers_of_two,
    six_bit_floats,
    unpack_words,
)
from core.contracts.part import Part
from core.errors import ModelError
from tests.quant_methods.stored import words


def whole(out: int, width: int) -> Part:
    """Return the part of a rank that has all of a weight."""
    rows = slice(0, out)
    return Part(
        pieces=((rows, rows),), columns_in=slice(0, width), out_features=out, in_features=width
    )


@pytest.mark.parametrize("bits", range(1, 9))
def test_numbers_come_out_of_words_that_they_may_straddle(bits: int) -> None:
    numbers = torch.randint(0, 1 << bits, (3, 70))
    assert torch.equal(unpack_words(words(numbers, bits), bits, 70).long(), numbers)
    middle = 1 << (bits - 1)
    assert torch.equal(centred(numbers.to(torch.uint8), bits).long(), numbers - middle)
    with pytest.raises(ModelError, match=f"which are not 200 numbers of {bits} bits"):
        unpack_words(words(numbers, bits), bits, 200)


def test_small_floats_are_those_of_eight_bits_that_they_are_equal_to() -> None:
    assert four_bit_floats(torch.tensor([0x21, 0xF7], dtype=torch.uint8)).float().tolist() == [
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
        assert six_bit_floats(packed, exponent_bits).float().tolist() == list(values)
    assert powers_of_two(torch.tensor([127, 130, 120], dtype=torch.uint8)).tolist() == [
        1.0,
        8.0,
        2.0**-7,
    ]


def test_a_large_weight_becomes_plain_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "PIECE", 40)
    codes = torch.randint(-8, 8, (7, 16), dtype=torch.int8)
    scales = torch.rand(7, 4)
    zeros = torch.randint(-3, 3, (7, 4), dtype=torch.int16)
    expected = (codes.float() - zeros.repeat_interleave(4, 1)) * scales.repeat_interleave(4, 1)
    order = torch.arange(16) // 4
    for layout in (GroupedInts(codes, scales, zeros), GroupedInts(codes, scales, zeros, order)):
        found = list(pieces(layout))
        assert [len(weight) for _, weight in found] == [2, 2, 2, 1]
        assert torch.equal(torch.cat([weight for _, weight in found]), expected)
    floats = ScaledFloats(torch.randn(7, 18).to(torch.float8_e4m3fn), torch.rand(7, 5), 4)
    assert torch.equal(torch.cat([weight for _, weight in pieces(floats)]), floats.plain())
    assert torch.equal(floats.plain()[:, 17], floats.values[:, 17].float() * floats.scales[:, 4])
