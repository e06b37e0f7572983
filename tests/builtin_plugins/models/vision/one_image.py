"""Models that read one image a prompt: what their tests share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from core import LLM, RequestOutput, SamplingParams
from tests.builtin_plugins.models.vision.parity import NUM_TOKENS, counters

Question = tuple[str, Any]
"""A text, and its image, images or None."""


class Reference(Protocol):
    """A checkpoint in transformers."""

    def check(self, output: Any, text: str, image: Any, num_tokens: int) -> None:
        """Raise `AssertionError` unless the output is transformers' own."""


def start(folder: Path, **settings: Any) -> LLM:
    """Return an engine."""
    return LLM(str(folder), dtype="float32", max_model_len=128, **settings)


def generate(
    llm: LLM, questions: Sequence[Question], num_tokens: int = NUM_TOKENS
) -> list[RequestOutput]:
    """Return the outputs of all questions in one batch."""
    greedy = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=3)
    prompts: list[Any] = [
        {"prompt": text, **({} if image is None else {"multi_modal_data": {"image": image}})}
        for text, image in questions
    ]
    return llm.generate(prompts, greedy, use_tqdm=False)


def check(
    llm: LLM, reference: Reference, questions: Sequence[Question], num_tokens: int = NUM_TOKENS
) -> None:
    """Raise `AssertionError` unless the outputs of a batch are transformers' own."""
    outputs = generate(llm, questions, num_tokens)
    for output, (text, image) in zip(outputs, questions, strict=True):
        reference.check(output, text, image, num_tokens)


def check_twice(llm: LLM, reference: Reference, questions: Sequence[Question]) -> None:
    """Do the same twice; the second time, the encoder cache has all images."""
    check(llm, reference, questions)
    before = counters(llm)["encoded"]
    check(llm, reference, questions)
    assert counters(llm)["encoded"] == before
