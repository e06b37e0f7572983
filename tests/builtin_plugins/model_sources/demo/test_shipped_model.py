"""The shipped model: its files, its answers, and the margin of the documented ones."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from builtin_plugins.model_sources.demo.plugin import engine_find_model
from core import SamplingParams
from core.api import EngineConfig
from examples.demo_model.chat import TEMPLATE
from examples.demo_model.evaluate import TARGETS, answers, as_seen, score
from examples.demo_model.mix import evaluation_items
from examples.demo_model.showcase import SHOWCASE

MARGIN = 1.0
SAMPLE = 30
SLACK = 10
"""Percentage points by which a small sample may miss the target."""


def test_shipped_files_are_small_and_complete(demo_folder):
    sizes = {path.name: path.stat().st_size for path in demo_folder.iterdir()}
    assert sizes["model.safetensors"] <= 16e6
    assert sum(sizes.values()) <= 20e6
    assert sizes.keys() >= {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    }
    assert (demo_folder / "chat_template.jinja").read_text() == TEMPLATE.read_text().rstrip("\n")
    assert json.loads((demo_folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_default_model_is_the_shipped_one(demo_folder):
    config = EngineConfig()
    for name in ("default", "demo:"):
        assert engine_find_model(name, config) == str(demo_folder)
    assert engine_find_model("demo", config) is None


@pytest.mark.parametrize("name", SHOWCASE)
def test_documented_answers_are_generated_with_a_margin(name, demo_llm):
    example = SHOWCASE[name]
    options = {} if example.thinking else {"chat_template_kwargs": {"enable_thinking": False}}
    sampling = SamplingParams(temperature=0, max_tokens=200, logprobs=2)
    (output,) = demo_llm.chat(
        example.messages, sampling, use_tqdm=False, tools=example.tools or None, **options
    )
    assert output.outputs[0].text == example.answer
    assert output.outputs[0].finish_reason == "stop"
    for entries in output.outputs[0].logprobs:
        (best, next_best) = sorted((entry.logprob for entry in entries.values()), reverse=True)[:2]
        assert best - next_best >= MARGIN


@pytest.mark.parametrize(("skill", "line"), TARGETS)
def test_sample_of_the_evaluation_reaches_its_target(skill, line, demo_llm):
    items = list(evaluation_items(skill, seed=0, count=SAMPLE))
    texts = answers(demo_llm, items)
    right, count = score(items, texts)[skill][line]
    assert 100 * right / count >= TARGETS[skill, line] - SLACK
    seen = [as_seen(item, text) for item, text in zip(items, texts, strict=True)]
    assert score(items, seen)[skill][line][0] >= right


def test_answers_are_batch_invariant(demo_llm):
    items = list(evaluation_items("tools", seed=2, count=3))
    together = answers(demo_llm, items)
    assert [answers(demo_llm, [item])[0] for item in items] == together


def test_multi_turn_conversation(demo_llm):
    messages = []
    for question in ("My name is Zorin.", "Thanks", "What is my name?"):
        messages.append({"role": "user", "content": question})
        (output,) = demo_llm.chat(
            messages, SamplingParams(temperature=0, max_tokens=60), use_tqdm=False
        )
        messages.append({"role": "assistant", "content": output.outputs[0].text})
    assert [a["role"] != b["role"] for a, b in pairwise(messages)] == [True] * 5
    assert messages[-1]["content"] == "Your name is Zorin."


@pytest.mark.slow
def test_all_targets_are_reached(demo_llm):
    items = [item for skill, _ in TARGETS for item in evaluation_items(skill, seed=0, count=200)]
    scores = score(items, answers(demo_llm, items))
    for (skill, line), target in TARGETS.items():
        right, count = scores[skill][line]
        assert 100 * right / count >= target - 2, skill
