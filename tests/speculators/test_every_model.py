"""Guesses change no greedy token of any kind of model: windows, experts, latents, states, and
mixtures of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mixed_requests import counted

from core import LLM
from core.testing.checkpoints import make_checkpoint
from tests.speculators.random_heads import write_heads
from tests.speculators.thirty_two import BASE, TREE, WAYS, answers, requests

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
HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Any], Path]]:
    """Return a function from architecture to a checkpoint, its answers without guesses, and a file
    of them.
    """
    root = tmp_path_factory.mktemp("models")
    known = {}

    def of(architecture: str) -> tuple[Path, list[Any], Path]:
        if architecture not in known:
            folder = make_checkpoint(architecture, root / architecture, seed=1)
            with LLM(str(folder), **BASE) as llm:
                said = answers(llm)
            prompts, _ = requests()
            texts = [[*p["prompt_token_ids"], *a] for p, a in zip(prompts, said, strict=False)]
            file = root / f"{architecture}.json"
            file.write_text(json.dumps(texts))
            known[architecture] = folder, said, file
        return known[architecture]

    return of


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[] if w == "depth 2" else pytest.mark.slow) for w in WAYS]
)
@pytest.mark.parametrize(
    "architecture", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in MODELS]
)
def test_guesses_change_no_token(told: Callable[[str], Any], architecture: str, way: str) -> None:
    folder, expected, file = told(architecture)
    config = {
        "method": "oracle",
        "model": str(file),
        "num_speculative_tokens": 5,
        "adaptive": False,
    }
    with LLM(
        str(folder),
        speculative_config=config,
        plugins=[str(HERE / "oracle.py")],
        **BASE | WAYS[way],
    ) as llm:
        assert answers(llm) == expected
        total = counted(llm)
        assert sum(total.right) > 0.3 * total.tokens > 100
        assert sum(total.right) < total.tokens
        llm.core.scheduler.check()


@pytest.fixture(scope="module")
def guessers(
    told: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Return what the option says, by who guesses."""
    heads = write_heads(tmp_path_factory.mktemp("heads"))
    small, _, _ = told("LlamaForCausalLM")
    return {
        "ngram": {"prompt_lookup_min": 1},  # these models say little twice
        "suffix": {},
        "hostile": {},
        "draft_model": {"model": str(small)},
        **{name: {"model": str(heads[name].folder)} for name in HEADS},
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["ngram", "suffix", "hostile", "draft_model", *HEADS])
@pytest.mark.parametrize("architecture", MODELS[:6])
def test_whoever_guesses(
    told: Callable[[str], Any],
    guessers: dict[str, dict[str, Any]],
    architecture: str,
    method: str,
    way: str,
) -> None:
    folder, expected, _ = told(architecture)
    config = {"method": method, "num_speculative_tokens": 5, "adaptive": False, **guessers[method]}
    rounds = (
        2 if way == "as it is" or method == "suffix" else 1
    )  # which guesses what was answered before
    with LLM(
        str(folder),
        speculative_config=config,
        plugins=[str(HERE / "hostile.py")],
        **BASE | WAYS[way],
    ) as llm:
        assert answers(llm, rounds) == expected[: 32 * rounds]
        assert counted(llm).tokens > 15 * rounds
        assert (llm.core.scheduler.num_preemptions > 0) == (way == "few blocks")
        llm.core.scheduler.check()


TREES = MODELS[2:6]


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[] if w == "few rows" else pytest.mark.slow) for w in WAYS]
)
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(m, marks=[] if m == "Gemma2ForCausalLM" else pytest.mark.slow) for m in TREES],
)
def test_trees_change_no_token(told: Callable[[str], Any], architecture: str, way: str) -> None:
    """The answers are on any way through the tree; some tokens are none of the vocabulary, and some
    siblings alike.
    """
    folder, expected, file = told(architecture)
    config = {
        "method": "forest",
        "model": str(file),
        "speculative_token_tree": TREE,
        "adaptive": False,
    }
    with LLM(
        str(folder),
        speculative_config=config,
        plugins=[str(HERE / "oracle.py")],
        **BASE | WAYS[way],
    ) as llm:
        assert answers(llm) == expected
        total = counted(llm)
        assert total.tokens > 3 * total.drafts, "more than chains"
        assert len(total.right) >= 4
        assert sum(total.right) > total.drafts
        llm.core.scheduler.check()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa"])
@pytest.mark.parametrize("architecture", TREES)
def test_whoever_fills_trees(
    told: Callable[[str], Any],
    guessers: dict[str, dict[str, Any]],
    architecture: str,
    method: str,
    way: str,
) -> None:
    folder, expected, _ = told(architecture)
    nodes = (
        TREE if method != "medusa" else "[(0,),(1,),(2,),(0,0),(0,1),(1,0),(0,0,0),(1,0,0)]"
    )  # it has three heads
    config = {
        "method": method,
        "speculative_token_tree": nodes,
        "adaptive": False,
        **guessers[method],
    }
    with LLM(str(folder), speculative_config=config, **BASE | WAYS[way]) as llm:
        assert answers(llm) == expected
        total = counted(llm)
        assert total.tokens > 2 * total.drafts > 100
        llm.core.scheduler.check()
