"""vLLM's names of attention backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.errors import ConfigError
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import make_checkpoint


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("TRITON_ATTN", "triton"),
        ("triton_attn", "triton"),
        ("TORCH_SDPA", "torch"),
        ("CPU_ATTN", "paged"),
    ],
)
def test_vllm_backend_name_selects_backend(theirs: str, ours: str) -> None:
    assert load_plan(make_plan([])).resolve({"attention_backend": theirs}) == {
        "attention_backend": ours
    }


@pytest.mark.parametrize("name", ["auto", "triton", "torch", "paged", "FLEX_ATTENTION"])
def test_other_backend_names_are_unchanged(name: str) -> None:
    assert load_plan(make_plan([])).resolve({"attention_backend": name}) == {}


def test_engine_accepts_vllm_name_and_rejects_unknown_backend(tmp_path: Path) -> None:
    folder = str(make_checkpoint("LlamaForCausalLM", tmp_path / "model", num_hidden_layers=1))
    sizes = {"max_num_seqs": 1, "max_model_len": 32, "num_gpu_blocks_override": 8}
    with LLM(folder, attention_backend="TORCH_SDPA", **sizes) as llm:
        assert llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)[0].outputs
    with pytest.raises(
        ConfigError, match=r"'FLEX_ATTENTION' is an attention kernel for GPUs.*: .*torch.*triton"
    ):
        LLM(folder, attention_backend="FLEX_ATTENTION", **sizes)
