"""Attention in Triton answers what dense attention answers, through the interpreter; tests of all
backends have the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from builtin_plugins.attention_backends.triton.backend import TritonAttention
from core.api import Entry
from core.model_spec.attention_params import AttentionParams
from core.testing.attention_oracle import CrossSequences, PagedSequences
from core.testing.conformance import Subject, attention_backends
from core.testing.no_readback import no_readback

PLAIN = AttentionParams(heads=4, kv_heads=2, head_size=8, scale=8**-0.5)
BY_HEAD = torch.linspace(-1.0, 2.0, 4)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def assert_close(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    got, truth = pair
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), truth, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("reach", "dtype"),
    [
        ({}, torch.bfloat16),
        ({"window": 5, "softcap": 2.0, "alibi": BY_HEAD, "sinks": BY_HEAD}, torch.float32),
        ({"chunk": 4}, torch.float32),
        ({"sinks": BY_HEAD}, torch.float32),
        ({"value_size": 5, "kv_heads": 1}, torch.float32),
        ({"distance_bias": torch.linspace(-3.0, 3.0, 4 * 21).view(4, 21)}, torch.float32),
    ],
    ids=["plain", "window, cap, slopes and sinks", "chunk", "sinks", "latent", "distances"],
)
def test_prefill_and_decode_match_dense_attention(
    reach: dict[str, Any], dtype: torch.dtype
) -> None:
    params = replace(PLAIN, **reach)
    sequences = PagedSequences(
        TritonAttention(), params, block_size=4, num_sequences=4, max_len=80, dtype=dtype
    )
    assert_close(sequences.step({0: 1, 1: 15, 2: 70}))
    assert_close(sequences.step({2: 1, 0: 1, 3: 5, 1: 2}))
    assert_close(sequences.step(dict.fromkeys(range(4), 1)))


def test_non_causal_attention_sees_all_positions() -> None:
    sequences = CrossSequences(TritonAttention(), replace(PLAIN, causal=False), [1, 17, 70])
    assert_close(sequences.step({0: 3, 2: 1}))
    assert_close(sequences.step({2: 1, 0: 1, 1: 1}))


def test_odd_head_size_and_group_of_three() -> None:
    sequences = PagedSequences(TritonAttention(), AttentionParams(6, 2, 7, 0.3), num_sequences=2)
    assert_close(sequences.step({0: 20, 1: 1}))
    assert_close(sequences.step({1: 1, 0: 1}))


def test_large_query_groups_span_programs() -> None:
    sequences = PagedSequences(
        TritonAttention(), AttentionParams(70, 1, 4, 0.5), num_sequences=2, max_len=80
    )
    assert_close(sequences.step({0: 70, 1: 2}))
    assert_close(sequences.step({0: 1, 1: 1}))


@pytest.mark.parametrize("programs", [pytest.param(1, marks=pytest.mark.slow), 3, 9])
def test_skewed_lengths_split_over_any_number_of_programs(programs: int) -> None:
    backend = TritonAttention()
    backend._programs = programs
    params = AttentionParams(heads=1, kv_heads=1, head_size=4, scale=0.5)
    sequences = PagedSequences(backend, params, num_sequences=3, max_len=200)
    sequences.step({0: 190, 1: 1, 2: 63})
    assert_close(sequences.step({0: 1, 1: 1, 2: 1}))


def _last_program_first(*numbers: int) -> range:
    return range(*numbers)[::-1] if len(numbers) == 1 else range(*numbers)


@pytest.mark.parametrize("heads", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_split_keys_are_merged_alike_whichever_program_is_last(
    heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers reuse one plan: the merge leaves the arrivals at 0."""
    backend = TritonAttention()
    backend._programs = 5 * heads
    params = AttentionParams(2 * heads, heads, head_size=8, scale=0.5, sinks=None)
    sequences = PagedSequences(backend, params, num_sequences=2, max_len=400)
    sequences.step({0: 390, 1: 90})
    inputs, query, key, value = sequences.tokens({0: 1, 1: 1})
    plan = backend.prepare(inputs)
    found = []
    for programs_of in (range, _last_program_first):
        with monkeypatch.context() as patch:
            patch.setattr(interpreter, "range", programs_of, raising=False)
            found.append(backend.attend(params, query, key, value, sequences.cache, plan))
    assert torch.equal(*found)
    (shared,) = plan.decode_plans.values()
    assert not shared.arrivals.any()


def test_nan_sequence_does_not_affect_others() -> None:
    backend = TritonAttention()
    sequences = PagedSequences(backend, PLAIN, num_sequences=2)
    inputs, query, key, value = sequences.tokens({0: 20, 1: 33})
    key[:20] = value[:20] = float("nan")
    backend.attend(PLAIN, query, key, value, sequences.cache, backend.prepare(inputs))
    got, truth = sequences.step({0: 1, 1: 1})
    assert got[0].isnan().all()
    assert_close((got[1:], truth[1:]))


def test_strided_qkv_without_device_sync() -> None:
    backend = TritonAttention()
    sequences = PagedSequences(TritonAttention(), PLAIN)
    inputs, query, key, value = sequences.tokens({0: 19})
    fused = torch.cat([tensor.flatten(1) for tensor in (query, key, value)], dim=1)
    parts = [part.view(19, -1, 8) for part in fused.split([32, 16, 16], dim=1)]
    twin = PagedSequences(backend, PLAIN)
    with no_readback():
        plan = backend.prepare(inputs)
    want = backend.attend(PLAIN, query, key, value, twin.cache, plan)
    assert torch.equal(backend.attend(PLAIN, *parts, sequences.cache, plan), want)


def test_starts_of_single_tokens_are_made_once() -> None:
    backend = TritonAttention()
    device = torch.device("cpu")
    first = backend._single_starts(3, device)
    assert first.tolist() == [0, 1, 2]
    assert first.dtype is torch.int32
    assert backend._single_starts(6, device).data_ptr() == first.data_ptr()
    assert backend._single_starts(9, device).tolist() == [*range(9)]


def test_step_without_tokens() -> None:
    sequences = PagedSequences(TritonAttention(), PLAIN)
    inputs, query, key, value = sequences.tokens({0: 1})
    none = replace(
        inputs,
        query_starts=[0],
        kv_lens=[],
        block_table=inputs.block_table[:0],
        slots=inputs.slots[:0],
    )
    plan = sequences.backend.prepare(none)
    out = sequences.backend.attend(PLAIN, query[:0], key[:0], value[:0], sequences.cache, plan)
    assert out.shape == (0, 4, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [value for name, value in vars(attention_backends).items() if name.startswith("check_")],
)
def test_conformance_suite_passes_in_the_interpreter(check: Any) -> None:
    if check is attention_backends.check_nothing_is_read_back:
        pytest.skip("the interpreter itself reads what it computes")
    entry = Entry("triton", TritonAttention, "without what it needs of a device")
    check(Subject("attention_backends", entry, TritonAttention))


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        AttentionParams(32, 8, 128, 128**-0.5),
        AttentionParams(14, 2, 64, 64**-0.5, window=128),
        AttentionParams(16, 1, 576, 0.07, value_size=512),
        AttentionParams(8, 4, 256, 256**-0.5, softcap=50.0),
    ],
    ids=str,
)
def test_real_model_shapes(params: AttentionParams) -> None:
    sequences = PagedSequences(
        TritonAttention(), params, num_sequences=3, max_len=700, dtype=torch.bfloat16
    )
    sequences.step({0: 600, 1: 33})
    assert_close(sequences.step({0: 30, 1: 1, 2: 64}))
    assert_close(sequences.step({0: 1, 1: 1, 2: 1}))
