"""Unpacks low-bit numbers from words and bytes. Independent of formats."""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

import torch

from core.api import ModelError
from core.models.dtypes import dtype_name

Tensor = torch.Tensor

E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits of an FP4 number; the fourth bit is the sign."""
WORD: Final = 32


def unpack_words(words: Tensor, bits: int, count: int) -> Tensor:
    """Return uint8 [..., count] from int32 [..., words], `bits` each, lowest bits first.

    A number of 3, 5, 6 or 7 bits may straddle two words. Raises `ModelError` for other sizes.
    """
    if (
        words.dtype != torch.int32
        or not 1 <= bits <= 8
        or words.shape[-1] != -(-count * bits // WORD)
    ):
        raise ModelError(
            f"holds {dtype_name(words.dtype)} {list(words.shape)}; expected int32 words of {count} "
            f"numbers of {bits} bits."
        )
    if WORD % bits == 0 and sys.byteorder == "little":
        # A single column of many reports contiguous but is not
        words = words.clone(memory_format=torch.contiguous_format)
        return unpack_bytes(words.view(torch.uint8), bits)[..., :count]
    missing = -words.shape[-1] % bits
    padded = torch.nn.functional.pad(words, (0, missing)).long() & 0xFFFFFFFF
    streams = padded.view(*padded.shape[:-1], -1, bits)  # 32 numbers fill `bits` words
    out = torch.empty(*streams.shape[:-1], WORD, dtype=torch.uint8, device=words.device)
    for index in range(WORD):
        word, shift = divmod(index * bits, WORD)
        number = streams[..., word] >> shift
        if shift + bits > WORD:
            number = number | streams[..., word + 1] << (WORD - shift)
        out[..., index] = (number & ((1 << bits) - 1)).to(torch.uint8)
    return out.flatten(-2)[..., :count]


def unpack_bytes(packed: Tensor, bits: int) -> Tensor:
    """Return uint8 [..., bytes * 8 / bits] from bytes, lowest bits first; `bits` divides 8."""
    if bits == 8:
        return packed
    per = 8 // bits
    out = torch.empty(*packed.shape, per, dtype=torch.uint8, device=packed.device)
    for index in range(per):
        torch.bitwise_and(packed >> (index * bits), (1 << bits) - 1, out=out[..., index])
    return out.flatten(-2)


def to_signed(codes: Tensor, bits: int) -> Tensor:
    """Return unsigned `bits`-bit numbers as int8, shifted by half their range."""
    if bits == 8:
        return (codes ^ 0x80).view(torch.int8)
    return codes.view(torch.int8) - (1 << (bits - 1))


def unpack_fp4(packed: Tensor) -> Tensor:
    """Return float8_e4m3fn [..., 2 * bytes] from bytes of two E2M1 floats, the lower one first."""
    # index_select runs in one thread; indexing would use several, which wait for each other.
    found = _pairs(packed.device).index_select(0, packed.flatten().int())
    return found.view(torch.float8_e4m3fn).view(*packed.shape[:-1], 2 * packed.shape[-1])


@cache
def _pairs(device: torch.device) -> Tensor:
    """Return int16 [256]: the two float8 numbers of each byte.

    Cached, as rows are unpacked a few at a time.
    """
    values = (
        torch.tensor([*E2M1, *(-value for value in E2M1)], device=device)
        .to(torch.float8_e4m3fn)
        .view(torch.uint8)
    )
    return (
        torch.stack((values.repeat(16), values.repeat_interleave(16)), -1)
        .view(torch.int16)
        .flatten()
    )


def unpack_fp6(packed: Tensor, exponent_bits: int = 2) -> Tensor:
    """Return float8_e4m3fn [..., 4 * bytes / 3] from packed E2M3 or E3M2 floats, lowest first."""
    triples = packed.int().view(*packed.shape[:-1], -1, 3)
    word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    codes = torch.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], -1).flatten(-2)
    return _six_bit_numbers(exponent_bits, packed.device)[codes].view(torch.float8_e4m3fn)


@cache
def _six_bit_numbers(exponent_bits: int, device: torch.device) -> Tensor:
    """Return uint8 [64]: the float8_e4m3fn of each code."""
    mantissa_bits = 5 - exponent_bits
    values = []
    for code in range(32):
        exponent = code >> mantissa_bits
        fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        # Exponent of subnormals and of the smallest normals
        min_exponent = 2 - (1 << (exponent_bits - 1))
        values.append(
            (1 + fraction) * 2.0 ** (min_exponent + exponent - 1)
            if exponent
            else fraction * 2.0**min_exponent
        )
    numbers = torch.tensor([*values, *(-value for value in values)], device=device)
    return numbers.to(torch.float8_e4m3fn).view(torch.uint8)


def e8m0_to_float(exponents: Tensor) -> Tensor:
    """Return float32 from scales stored as eight-bit exponents (E8M0)."""
    return torch.exp2(exponents.view(torch.uint8).float() - 127)
