"""Outputs for suffix decoding: small, reproducible, and without effect on the answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.speculators.suffix import FILE
from core import LLM, SamplingParams
from examples.demo_model.evaluate import options
from examples.demo_model.mix import evaluation_items
from examples.demo_model.outputs import COUNT, save_outputs

SKILLS = ("arithmetic", "tools", "json", "lists", "rules", "engine")


@pytest.fixture(scope="module")
def outputs(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    save_outputs(demo_folder, folder, COUNT)
    return folder


def test_outputs_are_small_and_extend_smaller_sets(
    outputs: Path, demo_folder: Path, tmp_path: Path
) -> None:
    assert sum(path.stat().st_size for path in outputs.iterdir()) < 500_000
    save_outputs(demo_folder, tmp_path, 128)
    few, many = (load_file(folder / FILE)["tokens"] for folder in (tmp_path, outputs))
    assert len(few) > 3000
    assert torch.equal(few, many[: len(few)])


def test_half_of_the_tokens_of_new_answers_are_accepted_draft_tokens(
    demo_llm: LLM, outputs: Path
) -> None:
    """The items are held out, so the file has none of their answers."""
    items = [item for skill in SKILLS for item in evaluation_items(skill, seed=5, count=4)]
    prompts = [demo_llm.preprocess_chat(item.messages, **options(item))[0] for item in items]
    greedy = SamplingParams(temperature=0, max_tokens=120)
    drawn = [SamplingParams(temperature=0.8, seed=i, max_tokens=40) for i in range(len(items))]
    config = {
        "method": "suffix",
        "model": str(outputs),
        "adaptive": False,
        "num_speculative_tokens": 8,
    }
    # Earlier outputs of this test are not cached, so all draft tokens come from the file.
    config["suffix_decoding_max_cached_requests"] = 0
    with LLM(
        dtype="float32", max_model_len=1024, speculative_config=config, log_level="error"
    ) as speculative:
        made = {}
        for name, llm in (("plain", demo_llm), ("speculative", speculative)):
            answers = llm.generate(prompts, greedy, use_tqdm=False)
            others = llm.generate(prompts, drawn, use_tqdm=False)
            made[name] = [each.outputs[0].token_ids for each in (*answers, *others)]
    assert made["speculative"] == made["plain"]
    right = sum(answer.counts.get("spec_decode_num_accepted_tokens", 0) for answer in answers)
    assert right > 0.5 * sum(len(answer.outputs[0].token_ids) for answer in answers)
