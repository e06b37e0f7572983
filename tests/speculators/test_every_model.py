"""Guesses change no greedy token of any kind of model: windows, experts, latents, states, and mixtures of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mixed_requests import counted

from core import LLM, SamplingParams
from core.testing.checkpoints import VOCAB, make_checkpoint
from tests.speculators.thirty_two import BASE as COMMON
from tests.speculators.thirty_two import WAYS as COMMON_WAYS

HERE = Path(__file__).parent
QUICK = ("JambaForCausalLM", "Qwen3NextForCausalLM")
MODELS = (
    *QUICK,
    "LlamaForCausalLM",
    "Gemma2ForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV3ForCausalLM",
    "MambaForCausalLM",
    "Mamba2ForCausalLM",
    "FalconH1ForCausalLM",
    "KimiLinearForCausalLM",
    "MiniMaxForCausalLM",
    "Lfm2ForCausalLM",
    "RecurrentGemmaForCausalLM",
)
BASE: dict[str, Any] = COMMON | {"mamba_block_size": 16, "enable_prefix_caching": True}
WAYS: dict[str, dict[str, Any]] = COMMON_WAYS | {"no prefix cache": {"enable_prefix_caching": False}}


def _requests(count: int = 32) -> tuple[list[Any], list[SamplingParams]]:
    """Return prompts, some of which begin alike, and how long each answer is."""
    draw = Random(3)
    shared = [draw.randrange(VOCAB - 3) for _ in range(40)]
    prompts = [
        shared[: 8 * (i % 6)] + [draw.randrange(VOCAB - 3) for _ in range(1 + draw.randrange(30))] for i in range(count)
    ]
    params = [
        SamplingParams(temperature=0, max_tokens=4 + draw.randrange(30), ignore_eos=True, detokenize=False)
        for _ in prompts
    ]
    return [{"prompt_token_ids": prompt} for prompt in prompts], params


def _answers(llm: LLM, rounds: int = 2) -> list[tuple[int, ...]]:
    """Return tokens; the second time prompts are found in the cache."""
    prompts, params = _requests()
    outputs = [o for _ in range(rounds) for o in llm.generate(prompts, params, use_tqdm=False)]
    assert not any(o.error for o in outputs), [o.error for o in outputs if o.error]
    return [tuple(o.outputs[0].token_ids) for o in outputs]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Any], Path]]:
    """Return a function from architecture to a checkpoint, its answers without guesses, and a file of them."""
    root, known = tmp_path_factory.mktemp("models"), {}

    def of(architecture: str) -> tuple[Path, list[Any], Path]:
        if architecture not in known:
            folder = make_checkpoint(architecture, root / architecture, seed=1)
            with LLM(str(folder), **BASE) as llm:
                answers = _answers(llm)
            prompts, _ = _requests()
            texts = [[*p["prompt_token_ids"], *a] for p, a in zip(prompts, answers, strict=False)]
            file = root / f"{architecture}.json"
            file.write_text(json.dumps(texts))
            known[architecture] = folder, answers, file
        return known[architecture]

    return of


@pytest.mark.parametrize("way", [pytest.param(w, marks=[] if w == "depth 2" else pytest.mark.slow) for w in WAYS])
@pytest.mark.parametrize(
    "architecture", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in MODELS]
)
def test_guesses_change_no_token(told: Callable[[str], Any], architecture: str, way: str) -> None:
    folder, answers, file = told(architecture)
    config = {"method": "oracle", "model": str(file), "num_speculative_tokens": 5, "adaptive": False}
    with LLM(str(folder), speculative_config=config, plugins=[str(HERE / "oracle.py")], **BASE | WAYS[way]) as llm:
        assert _answers(llm) == answers
        total = counted(llm)
        assert sum(total.right) > 0.3 * total.tokens > 100
        assert sum(total.right) < total.tokens
        llm.core.scheduler.check()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ngram", "suffix", "hostile"])
@pytest.mark.parametrize("architecture", MODELS[:6])
def test_whoever_guesses(told: Callable[[str], Any], architecture: str, method: str) -> None:
    folder, answers, _ = told(architecture)
    config = {"method": method, "num_speculative_tokens": 5, "adaptive": False}
    if method == "ngram":
        config["prompt_lookup_min"] = 1  # these models say little twice
    with LLM(str(folder), speculative_config=config, plugins=[str(HERE / "hostile.py")], **BASE) as llm:
        assert _answers(llm) == answers
        assert counted(llm).tokens > 30
