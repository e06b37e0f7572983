"""Quantized KV caches: all backends round alike and read what was cached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from builtin_plugins.attention_backends.common.quantized_kv import (
    DTYPE_MAX,
    dequantize_kv,
    quantize_kv,
)
from builtin_plugins.attention_backends.paged.backend import PagedAttention, make_backend
from builtin_plugins.attention_backends.reference.backend import ReferenceAttention
from builtin_plugins.attention_backends.torch_sdpa.backend import TorchAttention
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, KVSpec, LatentKeys, SlidingWindow
from core.testing.attention_oracle import PagedSequences

BACKENDS = [ReferenceAttention, TorchAttention, make_backend]
PLAIN = AttentionParams(heads=4, kv_heads=2, head_size=24, scale=24**-0.5)
KNOWN = {"key_scale": torch.tensor([0.02, 0.5]), "value_scale": torch.tensor([0.25, 0.03])}
ONE = {"key_scale": torch.tensor([0.02])}
"""Of latents, which are one key for all heads."""
KINDS = [
    ("float8_e4m3fn", False),
    ("float8_e5m2", False),
    ("float8_e4m3fn", True),
    ("int8", True),
    ("bfloat16", False),
]
REACHES: list[dict[str, Any]] = [{}, {"window": 7}, {"value_size": 10, "kv_heads": 1}]
STEPS = (
    {0: 1, 1: 15, 2: 16, 3: 17, 4: 33},
    {0: 1, 1: 1, 2: 1, 3: 1, 4: 1},
    {3: 1, 5: 20, 0: 1, 4: 9, 1: 2},
    {4: 1},
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def layer(kind: tuple[str, bool], reach: dict[str, Any]) -> tuple[AttentionParams, KVSpec]:
    """Return a layer with this cache, and its spec."""
    dtype, scaled = kind
    params = replace(PLAIN, kv_dtype=dtype, **reach)
    if not scaled and dtype != "bfloat16":
        params = replace(params, **(ONE if params.value_size else KNOWN))
    facts = (params.kv_heads, params.head_size, dtype)
    if params.value_size:
        return params, LatentKeys(*facts, scaled=scaled)
    if params.window:
        return params, SlidingWindow(*facts, scaled=scaled, window=params.window)
    return params, FullAttention(*facts, scaled=scaled)


def rounded(
    params: AttentionParams, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values after a round trip through the cache."""
    assert params.kv_dtype is not None
    cache = torch.empty(0, dtype=getattr(torch, params.kv_dtype))
    own = key[:, None] if params.value_size else torch.stack((key, value), 1)
    read = dequantize_kv(params, quantize_kv(params, own, cache), cache, key.dtype)
    return read[:, 0], read[:, -1]


def sequences(
    backend: Any, kind: tuple[str, bool], reach: dict[str, Any], dtype: torch.dtype, **more: Any
) -> Any:
    params, spec = layer(kind, reach)
    stored = lambda key, value: rounded(params, key, value)  # noqa: E731
    return PagedSequences(
        backend,
        params,
        num_sequences=6,
        max_len=64,
        dtype=dtype,
        spec=spec,
        **{"stored": stored, **more},
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("reach", REACHES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.__name__)
def test_cached_values_are_read_rounded(
    backend: Any, kind: tuple[str, bool], reach: dict[str, Any], dtype: torch.dtype
) -> None:
    for block_size in (4, 16):
        some = sequences(backend(), kind, reach, dtype, block_size=block_size)
        for counts in STEPS:
            got, truth = some.step(counts)
            tolerance = max(
                TOLERANCE[dtype], TOLERANCE[torch.bfloat16] if kind[0] == "bfloat16" else 0
            )
            torch.testing.assert_close(got.double(), truth, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS[:-1], ids=str)
def test_quantized_kv_attention_is_near_full_precision(kind: tuple[str, bool]) -> None:
    for counts in STEPS[:1]:
        some = sequences(
            TorchAttention(), kind, {}, torch.float32, stored=lambda key, value: (key, value)
        )
        got, truth = some.step(counts)
        # Half of the last digit of a number, relative; of int8, of a vector's largest number.
        # Scores move by that times their size, values by it themselves.
        last = {"int8": 1 / 127, "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2}[kind[0]]
        assert 0 < (got - truth).abs().max() < 3 * last


@pytest.mark.parametrize("kind", KINDS[:-1], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [24, 64, 7])
def test_torch_and_cpp_write_equal_bytes(
    kind: tuple[str, bool], dtype: torch.dtype, size: int
) -> None:
    backend = make_backend()
    if not isinstance(backend, PagedAttention):
        pytest.skip("no C++ library on this machine")
    params, spec = layer(kind, {"head_size": size})
    own = sequences(backend, kind, {"head_size": size}, dtype)
    inputs, query, key, value = own.tokens({0: 33})
    key[3] = 0
    value[5] = 1e-30  # smaller than the smallest scale
    key[4] *= 3e3  # above the dtype's maximum
    backend.attend(params, query, key, value, own.cache, backend.prepare(inputs))
    rows = quantize_kv(params, torch.stack((key, value), 1), own.cache)
    blocks = inputs.slots // 16
    offsets = inputs.slots % 16
    stored = own.cache.view(torch.uint8)[blocks, :, :, offsets]  # [n, kv_heads, vectors, row_size]
    assert torch.equal(stored.transpose(1, 2), rows)
    assert stored.shape[-1] == spec.row_size


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.__name__)
def test_quantized_kv_is_invariant_to_prefill_chunks(backend: Any, kind: tuple[str, bool]) -> None:
    """Tokens also read the keys of their own step as cached."""
    whole, pieces = (sequences(backend(), kind, {}, torch.float32) for _ in range(2))
    inputs, query, key, value = whole.tokens({0: 40})
    at_once = whole.backend.attend(
        whole.params, query, key, value, whole.cache, whole.backend.prepare(inputs)
    )
    found = []
    for start, end in ((0, 17), (17, 18), (18, 40)):
        part = replace(
            inputs,
            query_starts=[0, end - start],
            kv_lens=[end],
            slots=inputs.slots[start:end],
        )
        own = slice(start, end)
        plan = pieces.backend.prepare(part)
        found.append(
            pieces.backend.attend(
                pieces.params, query[own], key[own], value[own], pieces.cache, plan
            )
        )
    torch.testing.assert_close(torch.cat(found), at_once, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [*DTYPE_MAX], ids=str)
def test_quantized_kv_clamps_large_values_and_preserves_nan(dtype: torch.dtype) -> None:
    params = replace(
        PLAIN,
        key_scale=torch.ones(2),
        value_scale=torch.ones(2),
        kv_dtype=str(dtype).partition(".")[2],
    )
    cache = torch.empty(0, dtype=dtype)
    vectors = torch.full((1, 2, 2, 24), -1e9)
    assert dequantize_kv(
        params, quantize_kv(params, vectors, cache), cache, torch.float32
    ).unique().tolist() == [-DTYPE_MAX[dtype]]
    scaled = replace(params, key_scale=None, value_scale=None)
    vectors[0, 0, 0, 3] = float("nan")
    read = dequantize_kv(scaled, quantize_kv(scaled, vectors, cache), cache, torch.float32)
    assert read[0, 0, 0].isnan().all()
    torch.testing.assert_close(read[0, 1], vectors[0, 1])
