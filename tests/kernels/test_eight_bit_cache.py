"""Attention over eight-bit KV caches in C++: every instruction set equals the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from core_kernels.library import load_library

from builtin_plugins.attention_backends.common.quantized_kv import dequantize_kv, quantize_kv
from builtin_plugins.attention_backends.paged.backend import PagedAttention
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, KVSpec, LatentKeys, SlidingWindow
from core.testing.attention_oracle import PagedSequences

LIBRARY = load_library()
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
KINDS = ["int8", "float8_e4m3fn", "float8_e5m2"]
SIZES = [48, *(pytest.param(size, marks=pytest.mark.slow) for size in (16, 20, 128))]
DTYPES = [
    torch.float32,
    torch.bfloat16,
    pytest.param(torch.float16, marks=pytest.mark.slow),
]
REACHES: list[dict[str, Any]] = [{}, {"window": 21}, {"value_size": 10, "kv_heads": 1}]
STEPS = ({0: 70, 1: 15, 2: 1}, {0: 1, 1: 1, 2: 1}, {2: 33, 0: 2}, {1: 1, 2: 1})

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


def sequences(
    kind: str, size: int, reach: dict[str, Any], dtype: torch.dtype, block_size: int
) -> PagedSequences:
    """Return sequences with a truth that reads keys and values as rounded by the cache."""
    params = replace(AttentionParams(4, 2, size, size**-0.5, kv_dtype=kind), **reach)
    facts = (params.kv_heads, size, kind)
    spec: KVSpec = FullAttention(*facts, scaled=True)
    if params.value_size:
        spec = LatentKeys(*facts, scaled=True)
    elif params.window:
        spec = SlidingWindow(*facts, scaled=True, window=params.window)

    def stored(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = torch.empty(0, dtype=getattr(torch, kind))
        own = key[:, None] if params.value_size else torch.stack((key, value), 1)
        read = dequantize_kv(params, quantize_kv(params, own, cache), cache, key.dtype)
        return read[:, 0], read[:, -1]

    assert LIBRARY is not None
    return PagedSequences(
        PagedAttention(LIBRARY),
        params,
        block_size=block_size,
        num_sequences=3,
        max_len=128,
        dtype=dtype,
        spec=spec,
        stored=stored,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reach", REACHES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_eight_bit_cache_matches_reference(
    isa: str, kind: str, size: int, reach: dict[str, Any], dtype: torch.dtype
) -> None:
    for block_size in (16, 12):
        some = sequences(kind, size, reach, dtype, block_size)
        for counts in STEPS:
            got, truth = some.step(counts)
            torch.testing.assert_close(
                got.double(), truth, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
            )
