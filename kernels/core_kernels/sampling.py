"""The library's choice of tokens from logits.

Each returns None for inputs it does not take: the caller has another way.
"""

from __future__ import annotations

import ctypes
from typing import Final

import torch

Tensor = torch.Tensor


class SamplingOps:
    """Bound to a loaded library.

    Safe to call from several threads. A row's token depends on that row alone.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._best: Final = library.core_best
        self._draw: Final = library.core_draw

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the best logit and its token per row of [n, vocab], [n] each; the first of equals,
        NaN before all.
        """
        if not _fits(logits):
            return None
        values = logits.new_empty(len(logits))
        tokens = logits.new_empty(len(logits), dtype=torch.int64)
        self._best(
            values.data_ptr(), tokens.data_ptr(), logits.data_ptr(), *logits.shape, logits.stride(0)
        )
        return values, tokens

    def draw(self, logits: Tensor, uniform: Tensor) -> Tensor | None:
        """Return one token per row [n], at contiguous float64 numbers [n] in [0, 1) of the
        cumulative distribution.
        """
        if not _fits(logits):
            return None
        tokens = logits.new_empty(len(logits), dtype=torch.int64)
        self._draw(
            tokens.data_ptr(),
            logits.data_ptr(),
            uniform.data_ptr(),
            *logits.shape,
            logits.stride(0),
        )
        return tokens


def _fits(logits: Tensor) -> bool:
    return (
        logits.dtype is torch.float32
        and logits.dim() == 2
        and logits.stride(1) == 1
        and logits.is_cpu
        and bool(logits.numel())
    )
