"""A split that cannot be is refused with the number, the limit and what to do, before any process
is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.executors.mp import executor as mp
from core import LLM
from core.errors import ConfigError
from core.testing.checkpoints import make_checkpoint


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: Any) -> None:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(mp, "RankProcess", started)


def refusal(model: str | Path, **settings: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        LLM(str(model), max_model_len=64, log_level="error", **settings)
    return str(raised.value)


@pytest.mark.parametrize(
    ("architecture", "overrides", "settings", "text"),
    [
        (
            "LlamaForCausalLM",
            {},
            {"tensor_parallel_size": 3},
            "--tensor-parallel-size 3 does not divide the model's 4 attention heads; possible "
            "here: 1, 2, 4.",
        ),
        (
            "LlamaForCausalLM",
            {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 6},
            {"tensor_parallel_size": 4},
            "--tensor-parallel-size 4 neither divides the model's 6 key-value heads nor is a "
            "multiple of them; "
            "possible here: 1, 2, 3, 6, 12.",
        ),
        (
            "T5ForConditionalGeneration",
            {},
            {"pipeline_parallel_size": 2},
            "--pipeline-parallel-size 2 would part the model's encoder from its decoder; use "
            "--tensor-parallel-size instead.",
        ),
        (
            "LlamaForCausalLM",
            {"intermediate_size": 98},
            {"tensor_parallel_size": 4},
            "--tensor-parallel-size 4 does not divide the model's intermediate size 98; possible "
            "here: 1, 2.",
        ),
        (
            "MixtralForCausalLM",
            {"intermediate_size": 97},
            {"tensor_parallel_size": 2},
            "--tensor-parallel-size 2 does not divide the experts' intermediate size 97; possible "
            "here: 1.",
        ),
        (
            "Olmo2ForCausalLM",
            {},
            {"tensor_parallel_size": 4},
            "--tensor-parallel-size 4 is more than the model's 2 key-value heads, which are "
            "normalised together; "
            "possible here: 1, 2.",
        ),
        (
            "LlamaForCausalLM",
            {},
            {"pipeline_parallel_size": 4},
            "--pipeline-parallel-size 4 is more than the 3 layers of the model; use at most 3.",
        ),
    ],
)
def test_unsupported_rank_counts_are_rejected(
    architecture: str,
    overrides: dict[str, Any],
    settings: dict[str, Any],
    text: str,
    tmp_path: Path,
) -> None:
    assert refusal(make_checkpoint(architecture, tmp_path, **overrides), **settings) == text


def test_uni_executor_rejects_tensor_parallelism(tmp_path: Path) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path)
    text = refusal(folder, tensor_parallel_size=2, distributed_executor_backend="uni")
    assert "--distributed-executor-backend uni runs one worker, not 2 ranks" in text


def test_model_without_sharding_is_rejected() -> None:
    assert "does not say how it splits over ranks" in refusal("scripted:", pipeline_parallel_size=2)
