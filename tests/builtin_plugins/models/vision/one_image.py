"""Models that read one image a prompt: what their tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch

from core import LLM, RequestOutput, SamplingParams
from tests.builtin_plugins.models.vision.parity import (
    FIRST,
    LOGPROB_TOLERANCE,
    NUM_TOKENS,
    SECOND,
    THIRD,
    counters,
)

Question = tuple[str, Any]
"""A text, and its image, images or None."""
QUESTIONS: Final[Sequence[Question]] = (
    ("what is it?", FIRST),
    ("what is it?", SECOND),
    ("a longer question about a picture, answer:", THIRD),
    ("no picture at all here", None),
)


class Reference(Protocol):
    """A checkpoint in transformers."""

    def check(self, output: Any, text: str, image: Any, num_tokens: int) -> None:
        """Raise `AssertionError` unless the output is transformers' own."""


@dataclass(frozen=True)
class CausalReference:
    """A checkpoint of a causal language model in transformers."""

    model: Any
    text_model: Any
    """Computes prompts without an image."""
    inputs: Callable[[str, Any], tuple[list[int], dict[str, Any]]]
    """Returns the token ids of a text and its image, if any, and the model's other inputs."""

    @torch.no_grad()
    def check(self, output: Any, text: str, image: Any, num_tokens: int) -> None:
        """Raise `AssertionError` unless the output is transformers' own."""
        ids, pixels = self.inputs(text, image)
        assert list(output.prompt_token_ids) == ids
        answer = output.outputs[0]
        assert len(answer.token_ids) == num_tokens
        model = self.model if pixels else self.text_model
        whole = torch.tensor([[*ids, *answer.token_ids]])
        logits = model(input_ids=whole, **pixels).logits[0, len(ids) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(answer.token_ids)
        found = [
            step[token].logprob
            for step, token in zip(answer.logprobs, answer.token_ids, strict=True)
        ]
        known = logits.log_softmax(-1).amax(-1).tolist()
        np.testing.assert_allclose(found, known, atol=LOGPROB_TOLERANCE, rtol=0)


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
