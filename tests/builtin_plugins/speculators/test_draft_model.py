"""Method `draft_model`: unchanged tokens; the target itself as draft model is mostly accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.errors import ConfigError, EngineError
from core.testing.checkpoints import make_checkpoint
from core.testing.invariants import check_scheduler
from tests.builtin_plugins.speculators.mixed_requests import counted, open_llm, run

DEMO = str(Path(__file__).parents[3] / "builtin_plugins" / "model_sources" / "demo" / "model")
SAME: dict[str, Any] = {"model": DEMO, "num_speculative_tokens": 3, "adaptive": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "few blocks": {
        "max_model_len": 96,
        "num_gpu_blocks_override": 40,
        "kv_cache_memory_bytes": None,
    },
    "depth 2, a budget of 16 tokens": {"async_scheduling": True, "max_num_batched_tokens": 16},
    "two ranks": {"tensor_parallel_size": 2},
}


@pytest.mark.parametrize(
    "variant",
    [pytest.param(w, marks=[] if w == "few blocks" else pytest.mark.slow) for w in VARIANTS],
)
def test_draft_model_changes_no_tokens(expected: list[Any], variant: str) -> None:
    with open_llm(SAME, **VARIANTS[variant]) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert sum(total.accepted_per_position) > 0.8 * total.num_draft_tokens > 100
        check_scheduler(llm.core.scheduler)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name in ("Gemma2ForCausalLM", "LlamaForCausalLM"):
        folders[name] = tmp_path_factory.mktemp("tiny")
        make_checkpoint(name, folders[name])
    return folders


@pytest.mark.parametrize(
    ("target", "draft"),
    [("Gemma2ForCausalLM", "Gemma2ForCausalLM"), ("LlamaForCausalLM", "Gemma2ForCausalLM")],
)
def test_draft_models_with_windows_and_other_architectures(
    tiny: dict[str, Path], target: str, draft: str
) -> None:
    """Prompts are longer than the windows, and blocks outside them are freed."""
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
    results = []
    for speculative in (
        None,
        {"model": str(tiny[draft]), "num_speculative_tokens": 3, "adaptive": False},
    ):
        with LLM(str(tiny[target]), speculative_config=speculative, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            results.append([output.outputs[0].token_ids for output in outputs])
    assert results[0] == results[1]
    counts = outputs[0].counts
    num_accepted, num_drafted = (
        counts[f"spec_decode_num_{name}_tokens"] for name in ("accepted", "draft")
    )
    assert num_drafted > 0
    assert num_accepted > 0.8 * num_drafted or target != draft


def test_invalid_draft_model_is_rejected(tiny: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="needs a `model`"):
        open_llm({"method": "draft_model"})
    with pytest.raises(EngineError, match="got a vocabulary of"):
        open_llm({"model": str(tiny["LlamaForCausalLM"])}, log_level="error")
