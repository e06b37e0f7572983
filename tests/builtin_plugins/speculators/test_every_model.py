"""Speculation changes no greedy tokens of any kind of model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.testing.checkpoints import make_checkpoint
from core.testing.invariants import check_scheduler
from tests.builtin_plugins.speculators.large_batch import BASE, TREE, VARIANTS, answers, requests
from tests.builtin_plugins.speculators.mixed_requests import counted
from tests.builtin_plugins.speculators.random_heads import write_heads

HERE = Path(__file__).parent
QUICK = ("JambaForCausalLM", "Qwen3NextForCausalLM")
MODELS = (
    *QUICK,
    "LlamaForCausalLM",
    "Gemma2ForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV4ForCausalLM",
    "ZayaForCausalLM",
    "InklingForCausalLM",
    "Inkling2ForCausalLM",
    "MambaForCausalLM",
    "Mamba2ForCausalLM",
    "FalconH1ForCausalLM",
    "KimiLinearForCausalLM",
    "MiniMaxForCausalLM",
    "Lfm2ForCausalLM",
    "RecurrentGemmaForCausalLM",
    "RwkvForCausalLM",
    "ZambaForCausalLM",
    "xLSTMForCausalLM",
)
HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator")


@pytest.fixture(scope="module")
def checkpoints(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, list[Any], Path]]:
    """Return a function from an architecture to a checkpoint, its tokens, and a file of them."""
    root = tmp_path_factory.mktemp("models")
    known = {}

    def make(architecture: str) -> tuple[Path, list[Any], Path]:
        if architecture not in known:
            folder = make_checkpoint(architecture, root / architecture, seed=1)
            with LLM(str(folder), **BASE) as llm:
                expected = answers(llm)
            prompts, _ = requests()
            texts = [[*p["prompt_token_ids"], *a] for p, a in zip(prompts, expected, strict=False)]
            file = root / f"{architecture}.json"
            file.write_text(json.dumps(texts))
            known[architecture] = folder, expected, file
        return known[architecture]

    return make


@pytest.mark.parametrize(
    "variant", [pytest.param(w, marks=[] if w == "depth 2" else pytest.mark.slow) for w in VARIANTS]
)
@pytest.mark.parametrize(
    "architecture", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in MODELS]
)
def test_speculation_changes_no_tokens(
    checkpoints: Callable[[str], Any], architecture: str, variant: str
) -> None:
    folder, expected, file = checkpoints(architecture)
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
        **BASE | VARIANTS[variant],
    ) as llm:
        assert answers(llm) == expected
        total = counted(llm)
        assert sum(total.accepted_per_position) > 0.3 * total.num_draft_tokens > 100
        assert sum(total.accepted_per_position) < total.num_draft_tokens
        check_scheduler(llm.core.scheduler)


@pytest.fixture(scope="module")
def method_settings(
    checkpoints: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Return `--speculative-config` keys, by method."""
    heads = write_heads(tmp_path_factory.mktemp("heads"))
    small, _, _ = checkpoints("LlamaForCausalLM")
    return {
        "ngram": {"prompt_lookup_min": 1},  # random models repeat little
        "suffix": {},
        "hostile": {},
        "draft_model": {"model": str(small)},
        **{name: {"model": str(heads[name].folder)} for name in HEADS},
    }


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("method", ["ngram", "suffix", "hostile", "draft_model", *HEADS])
@pytest.mark.parametrize("architecture", MODELS[:6])
def test_every_method_changes_no_tokens(
    checkpoints: Callable[[str], Any],
    method_settings: dict[str, dict[str, Any]],
    architecture: str,
    method: str,
    variant: str,
) -> None:
    folder, expected, _ = checkpoints(architecture)
    config = {
        "method": method,
        "num_speculative_tokens": 5,
        "adaptive": False,
        **method_settings[method],
    }
    rounds = (
        2 if variant == "default" or method == "suffix" else 1
    )  # `suffix` drafts earlier outputs
    with LLM(
        str(folder),
        speculative_config=config,
        plugins=[str(HERE / "faulty_speculators.py")],
        **BASE | VARIANTS[variant],
    ) as llm:
        assert answers(llm, rounds) == expected[: 32 * rounds]
        assert counted(llm).num_draft_tokens > 15 * rounds
        assert (llm.core.scheduler.num_preemptions > 0) == (variant == "few blocks")
        check_scheduler(llm.core.scheduler)


TREES = MODELS[2:6]


@pytest.mark.parametrize(
    "variant",
    [pytest.param(w, marks=[] if w == "few rows" else pytest.mark.slow) for w in VARIANTS],
)
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(m, marks=[] if m == "Gemma2ForCausalLM" else pytest.mark.slow) for m in TREES],
)
def test_trees_change_no_tokens(
    checkpoints: Callable[[str], Any], architecture: str, variant: str
) -> None:
    """The expected tokens are on a random path; some draft tokens are invalid or equal siblings."""
    folder, expected, file = checkpoints(architecture)
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
        **BASE | VARIANTS[variant],
    ) as llm:
        assert answers(llm) == expected
        total = counted(llm)
        assert total.num_draft_tokens > 3 * total.num_steps, "more than chains"
        assert len(total.accepted_per_position) >= 4
        assert sum(total.accepted_per_position) > total.num_steps
        check_scheduler(llm.core.scheduler)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "medusa"])
@pytest.mark.parametrize("architecture", TREES)
def test_every_tree_method_changes_no_tokens(
    checkpoints: Callable[[str], Any],
    method_settings: dict[str, dict[str, Any]],
    architecture: str,
    method: str,
    variant: str,
) -> None:
    folder, expected, _ = checkpoints(architecture)
    nodes = (
        TREE if method != "medusa" else "[(0,),(1,),(2,),(0,0),(0,1),(1,0),(0,0,0),(1,0,0)]"
    )  # it has three heads
    config = {
        "method": method,
        "speculative_token_tree": nodes,
        "adaptive": False,
        **method_settings[method],
    }
    with LLM(str(folder), speculative_config=config, **BASE | VARIANTS[variant]) as llm:
        assert answers(llm) == expected
        total = counted(llm)
        assert total.num_draft_tokens > 2 * total.num_steps > 100
        check_scheduler(llm.core.scheduler)
