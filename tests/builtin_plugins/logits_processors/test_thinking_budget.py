"""Thoughts end when their tokens are used up, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from builtin_plugins.logits_processors.thinking_budget import ThinkingBudget
from core import LLM, SamplingParams
from core.api import InvalidRequest
from core.api.sampling import SamplerContext, SampleRows
from core.testing.byte_tokenizer import ByteTokenizer
from core.testing.no_readback import no_readback

VOCAB = ByteTokenizer.vocab_size
THOUGHTS = "<think>0123456789</think>Yes, it is so."


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        "scripted:",
        max_model_len=256,
        kv_cache_memory_bytes=1 << 20,
        num_threads=1,
        log_level="error",
    ) as made:
        yield made


def say(llm: LLM, text: str, **arguments: Any) -> str:
    sampling = SamplingParams(max_tokens=100, temperature=0.0, extra_args=arguments)
    return llm.generate(text, sampling, use_tqdm=False)[0].outputs[0].text


def test_reasoning_is_cut_at_its_budget(llm: LLM) -> None:
    found = say(llm, THOUGHTS, thinking_token_budget=4)
    assert found.startswith("<think>0123</think>")
    assert found == THOUGHTS[:11] + "</think>" + THOUGHTS[19:]


def test_zero_budget_ends_reasoning_at_once(llm: LLM) -> None:
    assert say(llm, THOUGHTS, thinking_token_budget=0).startswith("<think></think>")


@pytest.mark.parametrize("text", [THOUGHTS, "No thoughts here, and a <think> in the text."])
def test_unused_budget_changes_nothing(llm: LLM, text: str) -> None:
    assert say(llm, text, thinking_token_budget=10 if text is THOUGHTS else 3) == text


def test_reasoning_end_texts_depend_on_the_family(llm: LLM) -> None:
    found = say(
        llm,
        "[T]abcdef[/T]the answer",
        thinking_token_budget=2,
        thinking_starts=["[T]"],
        thinking_end="[/T]",
    )
    assert found.startswith("[T]ab[/T]")


@pytest.mark.parametrize(
    ("budget", "field"), [(-1, "thinking_token_budget"), ("x", "thinking_token_budget")]
)
def test_invalid_budget_is_rejected(llm: LLM, budget: Any, field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"extra_args.{field}: "):
        say(llm, "x", thinking_token_budget=budget)


@pytest.mark.parametrize(
    ("prompt", "output", "forced"),
    [
        ("hi<think>\n", "abc", "<"),
        ("hi<think>\n", "abc<", "/"),
        ("hi<think>\n", "ab", ""),
        ("hi<think>\n", "a</think>bc", ""),
        ("<think></think>", "abc", ""),
        ("hi", "<think>abc", "<"),
        ("hi", "so abcdefg", ""),
    ],
)
def test_next_end_token_is_forced_when_due(prompt: str, output: str, forced: str) -> None:
    tokenizer: Any = ByteTokenizer()
    sampling = ThinkingBudget.prepare(
        SamplingParams(extra_args={"thinking_token_budget": 3}), tokenizer
    )
    processor = ThinkingBudget(SamplerContext(VOCAB, 2, 64, "cpu"))
    tokens = tokenizer.encode(prompt + output)
    processor.added(1, sampling, tokens, len(prompt))
    history = torch.full((2, 64), 256)
    history[1, : len(tokens)] = torch.tensor(tokens)
    index = torch.tensor([[1], [len(tokens)], [len(prompt)]])
    rows = SampleRows([1], [len(prompt)], [len(tokens)], index[0], index[1], index[2], history)
    with no_readback():
        logits = processor.apply(torch.zeros(1, VOCAB), rows)
    possible = logits[0].isfinite().nonzero().flatten().tolist()
    assert possible == ([ord(forced)] if forced else list(range(VOCAB)))
    processor.removed(1)
