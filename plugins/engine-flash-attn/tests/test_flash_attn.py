"""The backend calls flash-attn correctly, tested with a stub with its signature in torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_flash_attn import plugin
from engine_flash_attn.backend import PAGE, FlashAttention

from core.config import EngineConfig
from core.errors import ConfigError
from core.model_spec.attention_params import AttentionParams
from core.plugin.facts import why_not
from core.testing.attention_oracle import CrossSequences, PagedSequences, dense_attention
from core.testing.released_signatures import assert_release_takes, read_released

PARAMS = AttentionParams(heads=4, kv_heads=2, head_size=8, scale=0.3)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """The signature of flash-attn 2.6 and later."""
    assert block_table is not None
    assert softmax_scale is not None
    assert not (k.shape[1] % PAGE)
    assert not dropout_p
    assert not deterministic
    assert not return_attn_probs
    assert {each.dtype for each in (cu_seqlens_q, cu_seqlens_k, block_table)} == {torch.int32}
    assert window_size[1] == (0 if causal else -1)
    queries = cu_seqlens_q.tolist()
    lengths = cu_seqlens_k.diff().tolist()
    assert (max_seqlen_q, max_seqlen_k) == (max(cu_seqlens_q.diff().tolist()), max(lengths))
    window = None if window_size[0] < 0 else window_size[0] + 1
    params = AttentionParams(
        q.shape[1],
        k.shape[2],
        q.shape[2],
        softmax_scale,
        window=window,
        softcap=softcap or None,
        alibi=alibi_slopes,
        causal=causal,
    )
    out = torch.empty_like(q)
    for i, length in enumerate(lengths):
        start = queries[i]
        end = queries[i + 1]
        keys, values = (
            each[block_table[i, : -(-length // each.shape[1])]].flatten(0, 1)[:length]
            for each in (k, v)
        )
        out[start:end] = dense_attention(
            params, q[start:end], keys, values, length - (end - start)
        ).to(q.dtype)
    return out


@pytest.fixture(autouse=True)
def stub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)


def test_released_library_takes_the_calls_of_the_stub() -> None:
    released = read_released(Path(__file__).with_name("released.pyi"))
    assert_release_takes(flash_attn_varlen_func, released["flash_attn_varlen_func"])


def config_of(block_size: int) -> EngineConfig:
    config = EngineConfig()
    return replace(config, cache=replace(config.cache, block_size=block_size))


@pytest.mark.parametrize(
    "changes",
    [{}, {"window": 5}, {"window": 300}, {"softcap": 2.0}, {"alibi": torch.linspace(0.1, 0.5, 4)}],
    ids=str,
)
def test_prefill_chunks_and_decode_equal_dense_attention(changes: dict[str, Any]) -> None:
    params = replace(PARAMS, **changes)
    sequences = PagedSequences(
        FlashAttention(config_of(PAGE)),
        params,
        block_size=PAGE,
        num_sequences=3,
        max_len=600,
        dtype=torch.bfloat16,
    )
    steps: tuple[dict[int, int], ...] = ({0: 1, 1: 270}, {2: 6, 0: 1, 1: 300}, {0: 1, 1: 1, 2: 1})
    for counts in steps:
        got, truth = sequences.step(counts)
        torch.testing.assert_close(got.double(), truth, atol=2e-2, rtol=2e-2)


def test_cross_attention_sees_all_encoder_states() -> None:
    backend = FlashAttention(config_of(PAGE))
    sequences = CrossSequences(
        backend, replace(PARAMS, causal=False), [1, 17, 300], block_size=PAGE
    )
    steps: tuple[dict[int, int], ...] = ({0: 3, 2: 1}, {2: 1, 0: 1, 1: 1})
    for counts in steps:
        got, truth = sequences.step(counts)
        torch.testing.assert_close(got.double(), truth, atol=2e-2, rtol=2e-2)


def test_step_without_tokens_returns_empty_output() -> None:
    backend = FlashAttention(config_of(PAGE))
    sequences = PagedSequences(backend, PARAMS, block_size=PAGE)
    inputs, query, key, value = sequences.tokens({0: 1})
    none = replace(
        inputs,
        query_starts=[0],
        kv_lens=[],
        block_table=inputs.block_table[:0],
        slots=inputs.slots[:0],
    )
    out = backend.attend(
        PARAMS, query[:0], key[:0], value[:0], sequences.cache, backend.prepare(none)
    )
    assert out.shape == (0, 4, 8)


def test_unsupported_block_size_is_rejected() -> None:
    with pytest.raises(
        ConfigError,
        match=r"--block-size 16: flash-attn needs a multiple of 256 tokens.*Use --block-size 256",
    ):
        FlashAttention(config_of(16))


def test_backend_is_unavailable_without_its_library() -> None:
    (entry,) = plugin.engine_attention_backends()
    bare = replace(entry, when={})
    assert "flash-attn" in (why_not(bare, {}) or "")


def test_vllm_backend_name_is_accepted() -> None:
    assert plugin.engine_resolve({"attention_backend": "FLASH_ATTN"}) == {
        "attention_backend": "flash_attn"
    }
    assert plugin.engine_resolve({"attention_backend": "flash_attn"}) is None
