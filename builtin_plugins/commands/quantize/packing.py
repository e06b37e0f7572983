"""Numbers of few bits into words and bytes, as compressed-tensors packs them."""

from __future__ import annotations

from typing import Final

import torch

Tensor = torch.Tensor

WORD: Final = 32
MIDDLES: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between the four-bit floats 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""
SIGN: Final = 8


def packed_words(codes: Tensor, bits: int) -> Tensor:
    """Return int32 [..., words] of unsigned int32 numbers: a stream of `bits` each along the last
    axis, lowest first.
    """
    count = codes.shape[-1]
    filled = torch.nn.functional.pad(codes, (0, -count % WORD)).to(torch.int64)
    lines = filled.view(
        *codes.shape[:-1], -1, WORD
    )  # 32 numbers in as many words as they have bits
    words = [torch.zeros_like(lines[..., 0]) for _ in range(bits)]
    for place in range(WORD):
        word, shift = divmod(place * bits, WORD)
        words[word] = words[word] | lines[..., place] << shift
        if shift + bits > WORD:
            words[word + 1] = words[word + 1] | lines[..., place] >> (WORD - shift)
    stream = torch.stack(words, -1).flatten(-2) & 0xFFFFFFFF
    signed = torch.where(stream >= 1 << (WORD - 1), stream - (1 << WORD), stream)
    return signed.to(torch.int32)[..., : -(-count * bits // WORD)].contiguous()


def nearest_four_bit(numbers: Tensor) -> Tensor:
    """Return uint8 codes of the nearest four-bit floats (E2M1); of two that are as near the even
    one.
    """
    size = numbers.abs()
    codes = torch.zeros_like(numbers, dtype=torch.uint8)
    for place, middle in enumerate(MIDDLES):
        codes += (size > middle) if place % 2 == 0 else (size >= middle)
    return codes + SIGN * (numbers < 0).to(torch.uint8)


def packed_nibbles(codes: Tensor) -> Tensor:
    """Return bytes of two codes each along the last axis, the first in the lower half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4
