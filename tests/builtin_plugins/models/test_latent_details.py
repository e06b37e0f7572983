"""Latent attention details: query latents, and contexts limited by an indexer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.errors import ConfigError, EngineError
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session

IDS = torch.randint(0, 290, (56,), generator=torch.Generator().manual_seed(0)).tolist()
INDEXED = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
REASON = "index_topk: with more, its layers choose among them, which is not computed here"


@pytest.mark.parametrize("seed", [1, 4])
def test_youtu_with_latent_queries_is_near_transformers(
    seed: int, tmp_path: Path, load: Callable[..., Any], by_transformers: Callable[[Path], Any]
) -> None:
    sizes = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
    more = {"q_lora_rank": 24, "rope_interleave": True, "tie_word_embeddings": True}
    folder = make_checkpoint("YoutuForCausalLM", tmp_path, seed=seed, **sizes, **more)
    with torch.inference_mode():
        target = (
            by_transformers(folder)(torch.tensor([IDS]), use_cache=False).logits[0].log_softmax(-1)
        )
    torch.testing.assert_close(
        Session(load("YoutuForCausalLM", folder)).step(IDS), target, atol=2e-5, rtol=0
    )


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 1 << 23,
        "num_threads": 1,
    }
    return LLM(str(folder), **(defaults | settings))


@pytest.mark.parametrize("architecture", INDEXED)
def test_shortened_context_is_logged_and_named_in_errors(
    architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=1, index_topk=40)
    refused = pytest.raises(
        EngineError, match=f"has 56 tokens, but the context holds 40 .{REASON}. with"
    )
    with caplog.at_level(logging.WARNING), open_engine(folder) as llm, refused:
        llm.generate([{"prompt_token_ids": IDS}], SamplingParams(max_tokens=1), use_tqdm=False)
    assert f"maximum context of 40 tokens instead of 512: {REASON}" in caplog.text


def test_max_model_len_above_context_limit_is_rejected(tmp_path: Path) -> None:
    folder = make_checkpoint(INDEXED[0], tmp_path, seed=1, index_topk=40)
    with pytest.raises(ConfigError, match=f"--max-model-len 41 is more than 40, {REASON}"):
        open_engine(folder, max_model_len=41)
    with (
        open_engine(folder, max_model_len=30) as llm,
        pytest.raises(EngineError, match="the context holds 30 with"),
    ):
        llm.generate([{"prompt_token_ids": IDS}], SamplingParams(max_tokens=1), use_tqdm=False)
