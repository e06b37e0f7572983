"""Argmax and sampling from logits on the CPU.

Each returns None for unsupported inputs.
"""

from __future__ import annotations

import ctypes
from typing import Final

import torch

Tensor = torch.Tensor


class SamplingOps:
    """Sampling of a loaded library.

    Thread-safe. A row's token depends on that row only.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._argmax: Final = library.core_argmax
        self._sample: Final = library.core_sample

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return maximum logit and token per row of [n, vocab]; ties: lowest index; a NaN wins."""
        if not _fits(logits):
            return None
        values = logits.new_empty(len(logits))
        tokens = logits.new_empty(len(logits), dtype=torch.int64)
        self._argmax(
            values.data_ptr(), tokens.data_ptr(), logits.data_ptr(), *logits.shape, logits.stride(0)
        )
        return values, tokens

    def sample(self, logits: Tensor, uniform: Tensor) -> Tensor | None:
        """Return one token per row [n] at the quantile `uniform` [n] (float64, contiguous, in [0,
        1)).
        """
        if not _fits(logits):
            return None
        tokens = logits.new_empty(len(logits), dtype=torch.int64)
        self._sample(
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
