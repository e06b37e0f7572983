"""Numbers of few bits out of words and bytes, as formats pack them. Knows no format."""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

import torch

from core.errors import ModelError

Tensor = torch.Tensor

E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of a four-bit float mean; the fourth is the sign."""
WORD: Final = 32


def unpack_words(words: Tensor, bits: int, count: int) -> Tensor:
    """Return uint8 [..., count] out of int32 [..., words]: a stream of `bits` each, lowest first,
    along the last axis.

    A number may begin in one word and end in the next (3, 5, 6 and 7 bits). Raises `ModelError` for
    other sizes.
    """
    if (
        words.dtype != torch.int32
        or not 1 <= bits <= 8
        or words.shape[-1] != -(-count * bits // WORD)
    ):
        raise ModelError(
            f"holds {_name(words.dtype)} {list(words.shape)}, which are not {count} numbers of "
            f"{bits} bits packed into "
            "words of int32."
        )
    if WORD % bits == 0 and sys.byteorder == "little":
        words = words.clone(
            memory_format=torch.contiguous_format
        )  # one column of many is called contiguous, and is not
        return unpack_bytes(words.view(torch.uint8), bits)[..., :count]
    missing = -words.shape[-1] % bits
    padded = torch.nn.functional.pad(words, (0, missing)).long() & 0xFFFFFFFF
    streams = padded.view(
        *padded.shape[:-1], -1, bits
    )  # 32 numbers in as many words as they have bits
    out = torch.empty(*streams.shape[:-1], WORD, dtype=torch.uint8, device=words.device)
    for index in range(WORD):
        word, shift = divmod(index * bits, WORD)
        number = streams[..., word] >> shift
        if shift + bits > WORD:
            number = number | streams[..., word + 1] << (WORD - shift)
        out[..., index] = (number & ((1 << bits) - 1)).to(torch.uint8)
    return out.flatten(-2)[..., :count]


def unpack_bytes(packed: Tensor, bits: int) -> Tensor:
    """Return uint8 [..., bytes * 8 / bits] out of bytes, lowest bits first; `bits` divides 8."""
    if bits == 8:
        return packed
    per = 8 // bits
    out = torch.empty(*packed.shape, per, dtype=torch.uint8, device=packed.device)
    for index in range(per):
        torch.bitwise_and(packed >> (index * bits), (1 << bits) - 1, out=out[..., index])
    return out.flatten(-2)


def centred(codes: Tensor, bits: int) -> Tensor:
    """Return unsigned numbers of so many bits as int8 with their middle taken off."""
    return (
        (codes ^ 0x80).view(torch.int8) if bits == 8 else codes.view(torch.int8) - (1 << (bits - 1))
    )


def four_bit_floats(packed: Tensor) -> Tensor:
    """Return float8_e4m3fn [..., 2 * bytes] out of bytes of two E2M1 floats each, the lower one
    first.
    """
    # In one thread: an index of this size is shared out, and threads wait for each other.
    found = _pairs(packed.device).index_select(0, packed.flatten().int())
    return found.view(torch.float8_e4m3fn).view(*packed.shape[:-1], 2 * packed.shape[-1])


@cache
def _pairs(device: torch.device) -> Tensor:
    """Return int16 [256]: the bytes of the two numbers that each byte has.

    Rows are unpacked few at a time, so it is kept.
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


def six_bit_floats(packed: Tensor, exponent_bits: int = 2) -> Tensor:
    """Return float8_e4m3fn [..., 4 * bytes / 3] out of four E2M3 or E3M2 floats in three bytes
    each, lowest bits first.
    """
    triples = packed.int().view(*packed.shape[:-1], -1, 3)
    word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    codes = torch.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], -1).flatten(-2)
    return _six_bit_numbers(exponent_bits, packed.device)[codes].view(torch.float8_e4m3fn)


@cache
def _six_bit_numbers(exponent_bits: int, device: torch.device) -> Tensor:
    """Return uint8 [64]: the float8_e4m3fn that each code is."""
    mantissa_bits = 5 - exponent_bits
    values = []
    for code in range(32):
        exponent = code >> mantissa_bits
        fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        least = 2 - (
            1 << (exponent_bits - 1)
        )  # the exponent of subnormal numbers and of the first normal ones
        values.append(
            (1 + fraction) * 2.0 ** (least + exponent - 1) if exponent else fraction * 2.0**least
        )
    numbers = torch.tensor([*values, *(-value for value in values)], device=device)
    return numbers.to(torch.float8_e4m3fn).view(torch.uint8)


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return float32 out of scales that are stored as exponents of eight bits (E8M0)."""
    return torch.exp2(exponents.view(torch.uint8).float() - 127)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
