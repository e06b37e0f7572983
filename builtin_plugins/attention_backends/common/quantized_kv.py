"""Quantized KV caches in torch: FP8 and int8 with scales per head or per vector.

A cached one-byte vector times its scale is the rounded original. Scales are static per head, or
stored after each vector. A vector's scale is its largest absolute value divided by the dtype's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from core.model_spec.attention_params import AttentionParams

DTYPE_MAX: Final[Mapping[torch.dtype, float]] = MappingProxyType(
    {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
)
"""Largest value of a dtype; larger values are clamped."""
KV_DTYPES: Final = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")
MIN_SCALE: Final = 2.0**-126
"""Lower bound of a scale, for vectors of zeros."""


def quantize_kv(
    params: AttentionParams, vectors: torch.Tensor, cache: torch.Tensor
) -> torch.Tensor:
    """Return vectors [..., vectors, kv_heads, head_size] as cache rows [..., row_size].

    One-byte rows are uint8, because index operations do not support FP8; view the cache with
    `as_bytes`.
    """
    if cache.dtype not in DTYPE_MAX:
        return vectors.to(cache.dtype)
    dtype_max = DTYPE_MAX[cache.dtype]
    wide = vectors.float()
    known = _scales(params)
    scales = (
        wide.abs().amax(-1, keepdim=True).div_(dtype_max).clamp_(min=MIN_SCALE)
        if known is None
        else known
    )
    wide = (wide / scales).clamp_(-dtype_max, dtype_max)
    rows = (wide.round_() if cache.dtype is torch.int8 else wide).to(cache.dtype).view(torch.uint8)
    return rows if known is not None else torch.cat([rows, scales.view(torch.uint8)], -1)


def dequantize_kv(
    params: AttentionParams, rows: torch.Tensor, cache: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return cache rows [..., vectors, kv_heads, row_size] as vectors [..., head_size] of a
    dtype.
    """
    if cache.dtype not in DTYPE_MAX:
        return rows.to(dtype)
    numbers = rows[..., : params.head_size].view(cache.dtype).float()
    scales = _scales(params)
    if scales is None:
        scales = rows[..., params.head_size :].contiguous().view(torch.float32)
    return (numbers * scales).to(dtype)


def as_bytes(cache: torch.Tensor) -> torch.Tensor:
    """Return a view of the cache in the dtype of `quantize_kv`'s rows."""
    return cache.view(torch.uint8) if cache.dtype in DTYPE_MAX else cache


def _scales(params: AttentionParams) -> torch.Tensor | None:
    """Return the static scales [vectors, kv_heads, 1]; None: each vector has its own."""
    key = params.key_scale
    value = params.value_scale
    if key is None:
        return None
    return torch.stack([key] if params.value_size is not None or value is None else [key, value])[
        ..., None
    ]
