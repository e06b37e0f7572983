"""Every builtin attention backend equals dense attention and reads only visible keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from builtin_plugins.attention_backends.common import look_ahead
from builtin_plugins.attention_backends.paged.backend import PagedAttention, make_backend
from builtin_plugins.attention_backends.reference.backend import ReferenceAttention
from builtin_plugins.attention_backends.torch_sdpa.backend import TorchAttention
from core.model_spec.attention_params import AttentionParams
from core.testing.attention_oracle import CrossSequences, PagedSequences

BACKENDS = [ReferenceAttention, TorchAttention, make_backend]
PLAIN = AttentionParams(heads=4, kv_heads=2, head_size=8, scale=8**-0.5)
REACHES: list[dict[str, Any]] = [
    {},
    {"window": 1},
    {"window": 5},
    {"window": 16},
    {"chunk": 4},
    {"chunk": 16},
    {"softcap": 2.0},
    {"softcap": 2.0, "window": 7},
    {"alibi": torch.linspace(0.5, 0.01, 4)},
    {"sinks": torch.linspace(-1.0, 2.0, 4), "window": 7},
    {"distance_bias": torch.linspace(-3.0, 3.0, 4 * 21).view(4, 21)},
    {"distance_bias": torch.linspace(3.0, -3.0, 4 * 9).view(4, 9), "window": 7},
    {"value_size": 5},
]
CROSS_VARIANTS: list[dict[str, Any]] = [{}, {"softcap": 2.0}, {"kv_heads": 4}]
LENGTHS = {0: 1, 1: 15, 2: 16, 3: 17, 4: 33}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def assert_close(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    got, truth = pair
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), truth, atol=tolerance, rtol=tolerance)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest) -> Any:
    made = request.param()
    requested = getattr(request.node, "callspec", None)
    reach = requested.params.get("reach", {}) if requested else {}
    if isinstance(made, PagedAttention) and "distance_bias" in reach:
        pytest.skip("another backend computes it")
    return made


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_sequences_fork_after_a_shared_token(
    backend: Any, reach: dict[str, Any], block_size: int
) -> None:
    sequences = PagedSequences(
        backend, replace(PLAIN, **reach), block_size=block_size, num_sequences=6
    )
    sequences.step({0: 1, 2: 15, 4: 33})
    for first in (0, 2, 4):
        assert_close(sequences.branch(first, first + 1))
    assert_close(sequences.step({1: 1, 0: 1, 3: 2, 5: 3, 4: 1}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_prefill_chunks_and_decode_agree_with_dense_attention(
    backend: Any, reach: dict[str, Any], block_size: int, dtype: torch.dtype
) -> None:
    sequences = PagedSequences(
        backend,
        replace(PLAIN, **reach),
        block_size=block_size,
        num_sequences=6,
        max_len=64,
        dtype=dtype,
    )
    assert_close(sequences.step(LENGTHS))  # whole prompts, one of a single token
    assert_close(sequences.step(dict.fromkeys(LENGTHS, 1)))  # decoding only
    assert_close(
        sequences.step({3: 1, 5: 20, 0: 1, 4: 9, 1: 2})
    )  # a prompt and continued chunks among decodes
    assert_close(sequences.step({4: 1, 5: 1}))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (1, 1), (6, 2)])
def test_grouped_query_heads_share_keys(backend: Any, heads: int, kv_heads: int) -> None:
    sequences = PagedSequences(
        backend, replace(PLAIN, heads=heads, kv_heads=kv_heads), num_sequences=2
    )
    assert_close(sequences.step({0: 9, 1: 18}))
    assert_close(sequences.step({0: 1, 1: 1}))
    assert_close(sequences.step({0: 1, 1: 3}))


@pytest.mark.parametrize("head_size", [1, 7, 80])
def test_odd_head_sizes(backend: Any, head_size: int) -> None:
    sequences = PagedSequences(backend, replace(PLAIN, head_size=head_size), num_sequences=1)
    assert_close(sequences.step({0: 18}))
    assert_close(sequences.step({0: 1}))


@pytest.mark.parametrize("reach", [{}, {"window": 300}, {"chunk": 512}, {"softcap": 3.0}], ids=str)
def test_long_sequences_of_unequal_length(backend: Any, reach: dict[str, Any]) -> None:
    params = AttentionParams(heads=2, kv_heads=1, head_size=4, scale=0.5, **reach)
    sequences = PagedSequences(backend, params, num_sequences=3, max_len=720)
    assert_close(sequences.step({0: 700, 1: 90, 2: 3}))
    assert_close(sequences.step({0: 1, 1: 1, 2: 1}))
    assert_close(sequences.step({1: 300, 0: 1}))


@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_float32_attention_is_batch_invariant(backend: Any, reach: dict[str, Any]) -> None:
    params = replace(PLAIN, **reach)
    together = PagedSequences(backend, params, num_sequences=3, max_len=200)
    alone = PagedSequences(backend, params, num_sequences=3, max_len=200)
    steps = [{0: 21, 1: 150, 2: 3}, {0: 1, 1: 1, 2: 1}, {0: 1, 1: 9, 2: 1}]
    for counts in steps:
        inputs, query, key, value = together.tokens(counts)
        got = backend.attend(params, query, key, value, together.cache, backend.prepare(inputs))
        for i in range(len(counts)):
            start = inputs.query_starts[i]
            end = inputs.query_starts[i + 1]
            own = replace(
                inputs,
                query_starts=[0, end - start],
                kv_lens=[inputs.kv_lens[i]],
                block_table=inputs.block_table[i : i + 1],
                slots=inputs.slots[start:end],
            )
            tensors = (tensor[start:end] for tensor in (query, key, value))
            single = backend.attend(params, *tensors, alone.cache, backend.prepare(own))
            torch.testing.assert_close(got[start:end], single, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("changes", CROSS_VARIANTS, ids=str)
def test_cross_attention_sees_all_encoder_positions(
    backend: Any, changes: Any, block_size: int, dtype: torch.dtype
) -> None:
    params = replace(PLAIN, causal=False, **changes)
    sequences = CrossSequences(
        backend, params, [1, 15, 16, 17, 70], block_size=block_size, dtype=dtype
    )
    assert_close(
        sequences.step({0: 3, 1: 1, 4: 20})
    )  # encoded in this step: two prompts, one of a single token
    assert_close(sequences.step({4: 1, 0: 1, 1: 1}))  # decoding only, nothing to encode
    assert_close(
        sequences.step({1: 1, 3: 1, 2: 5, 0: 30})
    )  # some are encoded, others were; more queries than keys


@pytest.mark.parametrize("value_size", [1, 20, 24])
def test_latent_key_is_shared_by_all_heads(backend: Any, value_size: int) -> None:
    params = AttentionParams(heads=6, kv_heads=1, head_size=24, scale=0.3, value_size=value_size)
    sequences = PagedSequences(backend, params, num_sequences=3, max_len=200)
    assert (
        sequences.cache.numel() == len(sequences.cache) * 16 * 24
    )  # one key per token and nothing else
    for counts in ({0: 150, 1: 40, 2: 1}, {0: 1, 1: 1, 2: 1}, {1: 30, 0: 1, 2: 7}):
        got, truth = sequences.step(counts)
        assert got.shape[-1] == value_size
        assert_close((got, truth))


def test_many_sequences_decode_in_any_order(backend: Any) -> None:
    lengths = dict(enumerate([40, 3, 170, 17, 90, 1, 65, 64]))
    params = AttentionParams(heads=8, kv_heads=8, head_size=128, scale=0.1)
    sequences = PagedSequences(backend, params, num_sequences=8, max_len=180)
    sequences.step(lengths)
    assert_close(sequences.step(dict.fromkeys(lengths, 1)))
    assert_close(sequences.step(dict.fromkeys([3, 1, 5], 1)))  # one bucket, the longest first


def test_stale_block_contents_cannot_leak(backend: Any) -> None:
    sequences = PagedSequences(backend, PLAIN, num_sequences=2, max_len=64)
    sequences.step(
        {0: 17, 1: 40}
    )  # both leave the rest of their last block, and all other blocks, as NaN
    got, truth = sequences.step({0: 1, 1: 1})
    assert got.isfinite().all()
    assert_close((got, truth))


def test_nan_sequence_does_not_affect_others(backend: Any) -> None:
    sequences = PagedSequences(backend, PLAIN, num_sequences=2, max_len=64)
    inputs, query, key, value = sequences.tokens({0: 20, 1: 33})
    key[:20] = value[:20] = float("nan")
    backend.attend(PLAIN, query, key, value, sequences.cache, backend.prepare(inputs))
    got, truth = sequences.step({0: 1, 1: 1})
    assert got[0].isnan().all()
    assert_close((got[1:], truth[1:]))


def test_strided_inputs_are_supported(backend: Any) -> None:
    sequences = PagedSequences(backend, PLAIN)
    inputs, query, key, value = sequences.tokens({0: 19})
    fused = torch.cat([tensor.flatten(1) for tensor in (query, key, value)], dim=1)
    parts = [part.view(19, -1, 8) for part in fused.split([32, 16, 16], dim=1)]
    twin = PagedSequences(backend, PLAIN)
    want = backend.attend(PLAIN, query, key, value, twin.cache, backend.prepare(inputs))
    assert torch.equal(
        backend.attend(PLAIN, *parts, sequences.cache, backend.prepare(inputs)), want
    )


def test_layers_with_different_windows_share_a_plan(backend: Any) -> None:
    wide = PagedSequences(backend, PLAIN)
    inputs, query, key, value = wide.tokens({0: 33})
    plan = backend.prepare(inputs)
    for reach in ({}, {"window": 4}, {}):
        params = replace(PLAIN, **reach)
        fresh = PagedSequences(backend, params)
        got = backend.attend(params, query, key, value, wide.cache, plan)
        inputs_again, *_ = fresh.tokens({0: 33})
        want = backend.attend(params, query, key, value, fresh.cache, backend.prepare(inputs_again))
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block_size", "head_size"), [(4, 8), (16, 16), (32, 32)])
@pytest.mark.parametrize("reach", [reach for reach in REACHES if "chunk" not in reach], ids=str)
def test_tokens_of_a_span_see_ahead_inside_their_window(
    backend: Any, reach: dict[str, Any], block_size: int, head_size: int, dtype: torch.dtype
) -> None:
    sequences = PagedSequences(
        backend,
        replace(PLAIN, head_size=head_size, **reach),
        block_size=block_size,
        num_sequences=3,
        max_len=64,
        dtype=dtype,
    )
    assert_close(sequences.step({0: 20, 1: 1, 2: 33}, {0: (3, 12), 2: (0, 33)}))
    assert_close(sequences.step({1: 1, 0: 11}, {0: (16, 31)}))
    assert_close(sequences.step({0: 1, 1: 9, 2: 1}, {1: (2, 11)}))
    assert_close(sequences.step({0: 1, 1: 1, 2: 2}))


def test_spans_in_pieces_equal_whole_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_ahead, "MAX_SCORES", 4 * 33 * 5)
    sequences = PagedSequences(TorchAttention(), PLAIN, num_sequences=1)
    assert_close(sequences.step({0: 33}, {0: (2, 30)}))
