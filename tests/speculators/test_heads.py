"""Heads that continue the model's hidden states: they change no token, and guess what their weights say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from mixed_requests import counted
from safetensors.torch import load_file, save_file

from core import LLM, SamplingParams
from core.testing.checkpoints import VOCAB, make_checkpoint

BASE: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 32,
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "kv_cache_memory_bytes": 32 << 20,
    "block_size": 8,
    "num_threads": 1,
    "log_level": "error",
}
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "depth 2": {"async_scheduling": True},
    "a budget of 48 tokens": {"max_num_batched_tokens": 48},
    "few rows": {"max_num_seqs": 5},
}


def answers(llm: LLM, rounds: int = 2) -> list[tuple[int, ...]]:
    """Return greedy tokens of 32 requests, some of which begin alike; the second time they are found in the cache."""
    draw = Random(3)
    shared = [draw.randrange(VOCAB - 3) for _ in range(40)]
    prompts = [
        shared[: 8 * (i % 6)] + [draw.randrange(VOCAB - 3) for _ in range(2 + draw.randrange(30))] for i in range(32)
    ]
    params = [
        SamplingParams(temperature=0, max_tokens=4 + draw.randrange(30), ignore_eos=True, detokenize=False)
        for _ in prompts
    ]
    jobs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = [o for _ in range(rounds) for o in llm.generate(jobs, params, use_tqdm=False)]
    assert not any(o.error for o in outputs), [o.error for o in outputs if o.error]
    return [tuple(o.outputs[0].token_ids) for o in outputs]


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def add_tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]], **values: torch.Tensor) -> None:
    """Add random tensors to a checkpoint; norms are near one."""
    file = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(5)
    made = {
        name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1 and "norm" in name)
        for name, shape in shapes.items()
    }
    save_file({**load_file(file), **made, **values}, file, metadata={"format": "pt"})


def guessed_like(llm: LLM, expected: list[Any]) -> None:
    assert answers(llm) == expected
    total = counted(llm)
    assert total.drafts > 100
    assert total.tokens > 2 * total.drafts
    llm.core.scheduler.check()


def mtp_shapes(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """Return what the layer for further tokens of a checkpoint wants."""
    found: dict[str, tuple[int, ...]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "builtin_plugins.speculators.heads.Heads._fill", lambda self, weights, *_: found.update(weights.shapes())
        )
        with LLM(str(folder), speculative_config={"method": "mtp"}, **BASE):
            pass
    return found


MTP = {
    "DeepseekV3ForCausalLM": {"num_nextn_predict_layers": 1},
    "Glm4MoeForCausalLM": {"num_nextn_predict_layers": 1},
    "Qwen3NextForCausalLM": {},
    "Ernie4_5_MoeForCausalLM": {"num_nextn_predict_layers": 1},
    "MiMoForCausalLM": {"num_nextn_predict_layers": 1, "architectures": ["MiMoForCausalLM"]},
}


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Any]]]:
    """Return a function from architecture to a checkpoint with a layer for further tokens, and its answers."""
    root, known = tmp_path_factory.mktemp("mtp"), {}

    def of(architecture: str) -> tuple[Path, list[Any]]:
        if architecture not in known:
            alike = "Qwen2ForCausalLM" if architecture.startswith("MiMo") else architecture
            folder = make_checkpoint(alike, root / architecture, seed=1)
            change_config(folder, **MTP[architecture])
            add_tensors(folder, mtp_shapes(folder))
            with LLM(str(folder), **BASE) as llm:
                known[architecture] = folder, answers(llm)
        return known[architecture]

    return of


@pytest.mark.parametrize("way", [pytest.param(w, marks=[] if w == "as it is" else pytest.mark.slow) for w in WAYS])
@pytest.mark.parametrize(
    "architecture", [pytest.param(m, marks=[] if m.startswith("Deep") else pytest.mark.slow) for m in MTP]
)
def test_a_layer_for_further_tokens_changes_none(
    with_mtp: Callable[[str], tuple[Path, list[Any]]], architecture: str, way: str
) -> None:
    folder, expected = with_mtp(architecture)
    config = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | WAYS[way]) as llm:
        guessed_like(llm, expected)
