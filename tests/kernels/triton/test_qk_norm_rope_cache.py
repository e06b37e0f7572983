"""Heads that are normed, turned and cached in one launch are those of the ops and of the write one
after the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from core_kernels.triton.block_copy import write_kv
from core_kernels.triton.qk_norm_rope_cache import write_qk_norm_rope

from builtin_plugins.attention_backends.triton.backend import TritonAttention
from core.model_spec.attention_params import AttentionParams, QkNormRope
from core.models.ops import reference
from core.testing.attention_oracle import PagedSequences

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def check(
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    size: int,
    turning: int,
    normed: bool,
    interleaved: bool,
) -> None:
    torch.manual_seed(0)
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * size + 3).to(dtype)
    query, key, value = (
        part.unflatten(1, (-1, size))
        for part in fused[:, : (heads + 2 * kv_heads) * size].split(
            [heads * size, kv_heads * size, kv_heads * size], 1
        )
    )
    angles = torch.randn(40, turning // 2)
    positions = torch.arange(tokens) * 7 % 40
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    slots = torch.randperm(2 * tokens + 2)[:tokens]
    caches = torch.full((2, tokens + 1, 2, 2, kv_heads, size), 7.0, dtype=dtype)
    norms = (torch.randn(size).to(dtype), torch.randn(size).to(dtype)) if normed else (None, None)
    turned = [query.clone(), key.clone()]
    for number, norm in enumerate(norms):
        if norm is not None:
            turned[number] = reference.rms_norm(turned[number], norm, 1e-6, 1.0)
    reference_out, expected_key = reference.rotary(*turned, table, positions, interleaved)
    write_kv(expected_key, value, caches[0], slots)
    write_qk_norm_rope(
        query, key, value, norms, 1e-6, 1.0, table, positions, interleaved, caches[1], slots
    )
    # The ops round what they have normed, and of two such numbers turning makes a sum in which they
    # may cancel.
    rounded = torch.finfo(dtype).eps * max(
        (float(part.abs().max()) for part in turned if part.numel()), default=0.0
    )
    for found, expected in ((query, reference_out), (caches[1], caches[0])):
        torch.testing.assert_close(
            found, expected, atol=max(TOLERANCE[dtype], rounded), rtol=TOLERANCE[dtype]
        )
    assert torch.equal(caches[1][:, 1], caches[0][:, 1]), "values are copied"


SHAPES = ((0, 2, 1, 4, 4), (3, 9, 1, 7, 2), (2, 3, 3, 8, 8), (1, 1, 1, 2, 2))


@pytest.mark.parametrize(
    ("dtype", "normed", "interleaved"),
    [(torch.float32, True, True), (torch.float32, False, False), (torch.bfloat16, True, False)],
)
def test_qk_norm_rope_cache_matches_separate_ops(
    dtype: torch.dtype, normed: bool, interleaved: bool
) -> None:
    for shape in SHAPES:
        check(dtype, *shape, normed=normed, interleaved=interleaved)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "normed", "interleaved"),
    [(torch.float32, True, False), (torch.float32, False, True), (torch.bfloat16, False, True)],
)
def test_qk_norm_rope_cache_variants(dtype: torch.dtype, normed: bool, interleaved: bool) -> None:
    for shape in SHAPES:
        check(dtype, *shape, normed=normed, interleaved=interleaved)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(17, 32, 8, 128, 128), (5, 16, 16, 80, 32), (3, 40, 2, 256, 64)])
def test_real_model_heads(shape: tuple[int, int, int, int, int]) -> None:
    check(torch.bfloat16, *shape, normed=True, interleaved=False)


@pytest.mark.parametrize("shared", [False, True])
def test_attend_with_rope_matches_separate_rope(shared: bool) -> None:
    params = AttentionParams(heads=4, kv_heads=2, head_size=8, scale=0.3, window=9)
    norms = torch.rand(2, 8) + 0.5
    rope = QkNormRope(norms[0], norms[1], 1e-6, 0.0, torch.randn(40, 6), interleaved=False)
    backend = TritonAttention()
    plain, fused = (PagedSequences(backend, params, num_sequences=2) for _ in range(2))
    for counts in ({0: 20, 1: 1}, {0: 1, 1: 1}):
        inputs, query, key, value = plain.tokens(counts)
        positions = torch.cat(
            [
                torch.arange(end - n, end)
                for end, n in zip(inputs.kv_lens, counts.values(), strict=True)
            ]
        )
        turned: Any = [
            reference.rms_norm(part, norm, 1e-6)
            for part, norm in zip((query, key), norms, strict=True)
        ]
        turned = reference.rotary(*turned, rope.cos_sin, positions)
        if shared:  # the last token's key is in the next slot as well
            last = inputs.slots[-1:]
            tokens = torch.arange(len(inputs.slots))
            inputs = replace(
                inputs,
                slots=torch.cat((inputs.slots, last + 1)),
                slot_tokens=torch.cat((tokens, tokens[-1:])),
            )
        plan = backend.prepare(inputs)
        reference_out = backend.attend(params, *turned, value, plain.cache, plan)
        found = backend.attend_with_rope(
            params, rope, query, key, value, positions, fused.cache, plan
        )
        torch.testing.assert_close(found, reference_out, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(fused.cache, plain.cache, atol=1e-5, rtol=1e-5, equal_nan=True)
