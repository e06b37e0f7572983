"""Writer of AWQ checkpoints for tests."""

from __future__ import annotations

from typing import Any

import torch

from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
    round_weight,
)

PACKED_IN_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def config(group: int = 16, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": True,
        **more,
    }


def as_awq(numbers: torch.Tensor) -> torch.Tensor:
    """Pack [n, out]: even ones of eight adjacent outputs first."""
    found = torch.zeros(numbers.shape[0], numbers.shape[1] // 8, dtype=torch.int64)
    for index, column in enumerate(PACKED_IN_ORDER):
        found |= numbers[:, column::8].long() << (4 * index)
    return torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)


def writer(group: int = 16) -> Writer:
    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, scales, zeros, plain = round_weight(weight, 4, group, symmetric=False)
        return {
            "qweight": as_awq(codes.T),
            "qzeros": as_awq(zeros.T),
            "scales": scales.T.contiguous(),
        }, plain

    return write
