"""Expert parallelism in the engine: equal tokens, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.executors.mp import executor as mp
from core import LLM
from core.errors import ConfigError
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.executors.test_rank_parity import (
    answers_of,
    assert_equal,
    open_engine,
    open_ranks,
)


@pytest.mark.parametrize(
    ("architecture", "split", "settings"),
    [
        ("Qwen2MoeForCausalLM", "tensor 2", {}),
        ("MixtralForCausalLM", "tensor 2", {"quantization": "experts_int8"}),
        pytest.param("MixtralForCausalLM", "both", {}, marks=pytest.mark.slow),
        pytest.param(
            "Qwen2MoeForCausalLM",
            "tensor 2",
            {"expert_placement_strategy": "round_robin"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_with_whole_experts_give_the_tokens_of_one(
    architecture: str, split: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=1)
    method = {name: value for name, value in settings.items() if name == "quantization"}
    with open_engine(folder, **method) as llm:
        expected = answers_of(llm)
    with open_ranks(folder, split, enable_expert_parallel=True, **settings) as llm:
        assert_equal(answers_of(llm), expected)


@pytest.mark.slow
def test_processes_with_whole_experts_give_the_tokens_of_one(tmp_path: Path) -> None:
    folder = make_checkpoint("MixtralForCausalLM", tmp_path, seed=1)
    with open_engine(folder) as llm:
        expected = answers_of(llm)
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    with open_engine(folder, plugins=[], enable_expert_parallel=True, **sizes) as llm:
        assert_equal(answers_of(llm), expected)


@pytest.mark.parametrize(
    ("architecture", "settings", "text"),
    [
        (
            "LlamaForCausalLM",
            {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            "--enable-expert-parallel: got True; expected a model with experts, not "
            "LlamaForCausalLM. Remove it.",
        ),
        (
            "MixtralForCausalLM",
            {"enable_expert_parallel": True},
            "--enable-expert-parallel: got True; expected tensor-parallel ranks",
        ),
        (
            "MixtralForCausalLM",
            {"tensor_parallel_size": 2, "expert_placement_strategy": "round_robin"},
            "--expert-placement-strategy: got round_robin; expected it with "
            "--enable-expert-parallel",
        ),
        (
            "MixtralForCausalLM",
            {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_lora": True},
            "--enable-expert-parallel: got True; expected no adapters of experts",
        ),
    ],
)
def test_settings_without_effect_are_refused(
    architecture: str,
    settings: dict[str, Any],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*arguments: Any) -> None:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(mp, "RankProcess", started)
    folder = make_checkpoint(architecture, tmp_path)
    with pytest.raises(ConfigError) as raised:
        LLM(str(folder), max_model_len=64, log_level="error", **settings)
    assert str(raised.value).startswith(text)
