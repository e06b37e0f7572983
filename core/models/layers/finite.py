"""Looks whether weights are numbers: NaN and infinities in a checkpoint would make every answer
nonsense.

Loading looks at a part of each tensor, which costs next to nothing and finds what is broken as a
whole or in large pieces; `engine doctor --model` looks at everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import torch

from core.errors import ModelError

WHOLE: Final = 4096
"""Tensors of at most so many numbers are looked at whole ..."""
SAMPLE: Final = 256
"""... and of others so many, spread evenly."""
_PIECE: Final = 1 << 22


def checked(
    tensors: Iterable[tuple[str, torch.Tensor]], loader: object, where: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the loader's tensors as they come. Raises `ModelError` naming the first that holds
    something that is no number.

    A loader that has files says in `reading` which one it is at; `where` is named for others.
    """
    for name, tensor in tensors:
        if not is_finite(sample(tensor)):
            raise ModelError(not_finite(name, str(getattr(loader, "reading", None) or where)))
        yield name, tensor
        del tensor  # or its pages would stay while the next one is read


def not_finite(name: str, where: str) -> str:
    """Return the text about a broken tensor."""
    shown = name if name.isprintable() and len(name) <= 120 else ascii(name[:120])
    return f"{where}: tensor {shown} holds NaN or infinite numbers. Download the file again, or take another checkpoint."


def numbers_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's numbers in one dimension; none where NaN and infinities mean nothing.

    Integers, packed weights among them, have neither. A single infinite number is a mask's, as old
    checkpoints have them.
    """
    if not tensor.is_floating_point() or tensor.numel() < 2 or tensor.is_meta:
        return tensor.new_empty(0)
    return tensor.reshape(-1)


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers that loading looks at."""
    flat = numbers_of(tensor)
    return flat if flat.numel() <= WHOLE else flat[:: flat.numel() // SAMPLE]


def is_finite(numbers: torch.Tensor) -> bool:
    """Say whether all numbers are finite; of any type, those of one byte included."""
    if numbers.numel() > _PIECE:
        return all(is_finite(part) for part in torch.split(numbers, _PIECE))
    if numbers.dtype.itemsize == 1:
        numbers = numbers.float()  # types of one byte have no sums
    # One sum instead of one answer for each number: whatever is not finite makes it so.
    return math.isfinite(numbers.sum(dtype=torch.float64).item())
