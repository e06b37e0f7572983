"""Contexts that end where results would differ from those of the model's own code."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.errors import ConfigError, EngineError
from core.testing.checkpoints import make_checkpoint

IDS = torch.randint(0, 290, (56,), generator=torch.Generator().manual_seed(0)).tolist()
REASON = "training_seqlen: with more, RoPE depends on the length of the text"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkpoint that was trained with 40 positions of 512."""
    make_checkpoint("TeleChat2ForCausalLM", tmp_path, seed=1)
    path = tmp_path / "config.json"
    sizes = {"seq_length": 512, "training_seqlen": 40}
    path.write_text(json.dumps({**json.loads(path.read_text()), **sizes}))
    return tmp_path


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 1 << 23,
        "num_threads": 1,
    }
    return LLM(str(folder), **(defaults | settings))


def test_shortened_context_is_logged_and_named_in_errors(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = pytest.raises(
        EngineError, match=f"has 56 tokens, but the context holds 40 .{REASON}. with"
    )
    with caplog.at_level(logging.WARNING), open_engine(folder) as llm, refused:
        llm.generate([{"prompt_token_ids": IDS}], SamplingParams(max_tokens=1), use_tqdm=False)
    assert f"maximum context of 40 tokens instead of 512: {REASON}" in caplog.text


def test_max_model_len_above_context_limit_is_rejected(folder: Path) -> None:
    with pytest.raises(ConfigError, match=f"--max-model-len 41 is more than 40, {REASON}"):
        open_engine(folder, max_model_len=41)
    with (
        open_engine(folder, max_model_len=30) as llm,
        pytest.raises(EngineError, match="the context holds 30 with"),
    ):
        llm.generate([{"prompt_token_ids": IDS}], SamplingParams(max_tokens=1), use_tqdm=False)
