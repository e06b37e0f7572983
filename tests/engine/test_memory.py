"""How the KV memory and the context length are fitted to each other."""

from __future__ import annotations

import pytest

from core import LLM, SamplingParams
from core.errors import ConfigError


def test_a_context_left_open_is_cut_to_what_the_memory_holds() -> None:
    with LLM("scripted:", kv_cache_memory_bytes=64 * 1024, block_size=16) as llm:
        assert llm.config.model.max_model_len is not None
        assert 900 < llm.config.model.max_model_len <= 1024  # 64 bytes a token
        assert (
            llm.generate("x" * 500, SamplingParams(max_tokens=600), use_tqdm=False)[0]
            .outputs[0]
            .text
            == "x" * 500
        )


def test_a_context_asked_for_that_the_memory_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-model-len 2048"):
        LLM("scripted:", max_model_len=2048, kv_cache_memory_bytes=64 * 1024)


def test_few_blocks_cut_the_context_so_that_every_accepted_request_can_end() -> None:
    with LLM("scripted:", max_model_len=2048, num_gpu_blocks_override=4, block_size=16) as llm:
        assert llm.config.model.max_model_len == 64
        output = llm.generate(
            "y" * 40, SamplingParams(max_tokens=1000, ignore_eos=True), use_tqdm=False
        )[0]
        assert output.outputs[0].finish_reason == "length"
        assert len(output.outputs[0].token_ids) == 24
