"""Keys and values in a cache of fewer bits: how they are written, and what they read as. In torch,
on any device.

A vector of eight-bit numbers times its factor is what was cached, rounded. Factors are known of
each head, or stand behind each vector: then they are its largest number by the dtype's, and depend
on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from core.api import AttentionParams

MOST: Final[Mapping[torch.dtype, float]] = MappingProxyType(
    {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
)
"""Largest number of a dtype; what is larger is cached as this."""
KV_DTYPES: Final = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")
LEAST_SCALE: Final = 2.0**-126
"""Of a vector that is nothing but zeros: it must not be divided by zero."""


def for_cache(params: AttentionParams, vectors: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Return vectors [..., vectors, kv_heads, head_size] as rows of the cache [..., vectors,
    kv_heads, row_size].

    Rows of eight bits are uint8, which can be moved where other dtypes of so few bits can not: view
    the cache likewise.
    """
    if cache.dtype not in MOST:
        return vectors.to(cache.dtype)
    most = MOST[cache.dtype]
    wide = vectors.float()
    known = _scales(params)
    scales = (
        wide.abs().amax(-1, keepdim=True).div_(most).clamp_(min=LEAST_SCALE)
        if known is None
        else known
    )
    wide = (wide / scales).clamp_(-most, most)
    rows = (wide.round_() if cache.dtype is torch.int8 else wide).to(cache.dtype).view(torch.uint8)
    return rows if known is not None else torch.cat([rows, scales.view(torch.uint8)], -1)


def from_cache(
    params: AttentionParams, rows: torch.Tensor, cache: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return rows [..., vectors, kv_heads, row_size], as `for_cache` makes them, as vectors [...,
    head_size] of a dtype.
    """
    if cache.dtype not in MOST:
        return rows.to(dtype)
    numbers = rows[..., : params.head_size].view(cache.dtype).float()
    scales = _scales(params)
    if scales is None:
        scales = rows[..., params.head_size :].contiguous().view(torch.float32)
    return (numbers * scales).to(dtype)


def movable(cache: torch.Tensor) -> torch.Tensor:
    """Return the cache in the dtype of rows."""
    return cache.view(torch.uint8) if cache.dtype in MOST else cache


def _scales(params: AttentionParams) -> torch.Tensor | None:
    """Return the factors of heads [vectors, kv_heads, 1], where vectors have none of their own."""
    key = params.key_scale
    value = params.value_scale
    if key is None:
        return None
    return torch.stack([key] if params.value_size is not None or value is None else [key, value])[
        ..., None
    ]
