"""A draft model: its guesses change no token, and where it is the model itself nearly all of them
are right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mixed_requests import counted, open_llm, run

from core import LLM, SamplingParams
from core.errors import ConfigError, EngineError
from core.testing.checkpoints import make_checkpoint

DEMO = str(Path(__file__).parents[2] / "builtin_plugins" / "model_sources" / "demo" / "model")
SAME: dict[str, Any] = {"model": DEMO, "num_speculative_tokens": 3, "adaptive": False}
WAYS: dict[str, dict[str, Any]] = {
    "few blocks": {
        "max_model_len": 96,
        "num_gpu_blocks_override": 40,
        "kv_cache_memory_bytes": None,
    },
    "depth 2, a budget of 16 tokens": {"async_scheduling": True, "max_num_batched_tokens": 16},
    "two ranks": {"tensor_parallel_size": 2},
}


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[] if w == "few blocks" else pytest.mark.slow) for w in WAYS]
)
def test_a_draft_model_changes_no_token(expected: list[Any], way: str) -> None:
    with open_llm(SAME, **WAYS[way]) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert sum(total.right) > 0.8 * total.tokens > 100
        llm.core.scheduler.check()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name in ("Gemma2ForCausalLM", "LlamaForCausalLM"):
        folders[name] = tmp_path_factory.mktemp("tiny")
        make_checkpoint(name, folders[name])
    return folders


@pytest.mark.parametrize(("target", "draft"), [("Gemma2ForCausalLM", "Gemma2ForCausalLM"), ("LlamaForCausalLM", "Gemma2ForCausalLM")])  # fmt: skip
def test_windows_and_other_architectures(tiny: dict[str, Path], target: str, draft: str) -> None:
    """Prompts are longer than the windows, and blocks behind them are given back."""
    options: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 128,
        "num_threads": 1,
        "block_size": 4,
        "kv_cache_memory_bytes": 8 << 20,
        "skip_tokenizer_init": True,
        "log_level": "error",
    }
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    prompts = [
        [(7 * i + j * j) % 90 for j in range(length)] for i, length in enumerate((70, 45, 91, 3))
    ]
    said = []
    for speculative in (
        None,
        {"model": str(tiny[draft]), "num_speculative_tokens": 3, "adaptive": False},
    ):
        with LLM(str(tiny[target]), speculative_config=speculative, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            said.append([output.outputs[0].token_ids for output in outputs])
    assert said[0] == said[1]
    counts = outputs[0].counts
    right, guessed = (counts[f"spec_decode_num_{name}_tokens"] for name in ("accepted", "draft"))
    assert guessed > 0
    assert right > 0.8 * guessed or target != draft


def test_what_is_no_draft_model_is_refused(tiny: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="needs a `model`"):
        open_llm({"method": "draft_model"})
    with pytest.raises(EngineError, match="same vocabulary"):
        open_llm({"model": str(tiny["LlamaForCausalLM"])}, log_level="error")
