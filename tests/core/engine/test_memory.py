"""Fitting the context length to the KV memory."""

from __future__ import annotations

import pytest

from core import LLM, SamplingParams
from core.errors import ConfigError


def test_automatic_context_is_reduced_to_fit() -> None:
    with LLM("scripted:", kv_cache_memory_bytes=64 * 1024, block_size=16) as llm:
        assert llm.config.model.max_model_len is not None
        assert 900 < llm.config.model.max_model_len <= 1024  # 64 bytes a token
        assert (
            llm.generate("x" * 500, SamplingParams(max_tokens=600), use_tqdm=False)[0]
            .outputs[0]
            .text
            == "x" * 500
        )


@pytest.mark.parametrize(
    "cache", [{"kv_cache_memory_bytes": 64 * 1024}, {"num_gpu_blocks_override": 4}]
)
def test_explicit_context_that_does_not_fit_is_refused(cache: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="--max-model-len 2048"):
        LLM("scripted:", max_model_len=2048, block_size=16, **cache)


def test_fixed_block_count_reduces_an_automatic_context() -> None:
    with LLM("scripted:", num_gpu_blocks_override=4, block_size=16) as llm:
        assert llm.config.model.max_model_len == 64
        output = llm.generate(
            "y" * 40, SamplingParams(max_tokens=1000, ignore_eos=True), use_tqdm=False
        )[0]
        assert output.outputs[0].finish_reason == "length"
        assert len(output.outputs[0].token_ids) == 24
