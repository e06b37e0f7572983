"""Unseen pictures with questions, and the scores of the answers.

`python -m examples.demo_model.vision.evaluate` prints a table through the engine.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from core import LLM, SamplingParams
from examples.demo_model.items import Draw
from examples.demo_model.vision.questions import Question, ask
from examples.demo_model.vision.task import pictures

PROMPT = "<|im_start|>user\n<image>\n{question}<|im_end|>\n<|im_start|>assistant\n"
LONGEST = 24
"""Tokens of an answer."""


class Example(NamedTuple):
    """A picture and a question about it."""

    image: Image.Image
    question: Question


def unseen(seed: int, count: int) -> list[Example]:
    """Return pictures of scenes that are never trained on."""
    draw = Draw(random.Random(f"vision {seed}"), evaluation=True)
    return [Example(each.image, ask(draw, each.scene)) for each in pictures(draw, count)]


def answers(llm: LLM, examples: Sequence[Example]) -> list[str]:
    """Return the model's greedy answers."""
    prompts: list[Any] = [
        {
            "prompt": PROMPT.format(question=example.question.text),
            "multi_modal_data": {"image": example.image},
        }
        for example in examples
    ]
    sampling = SamplingParams(temperature=0, max_tokens=LONGEST)
    return [each.outputs[0].text for each in llm.generate(prompts, sampling, use_tqdm=False)]


def score(examples: Sequence[Example], texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return right and all answers of each skill."""
    skills = Counter(example.question.skill for example in examples)
    good = Counter(
        example.question.skill
        for example, text in zip(examples, texts, strict=True)
        if text == example.question.answer
    )
    return {skill: (good[skill], count) for skill, count in sorted(skills.items())}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo:vision")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show-wrong", action="store_true")
    arguments = parser.parse_args()
    examples = unseen(arguments.seed, arguments.count)
    with LLM(arguments.model, num_threads=1, max_model_len=512) as llm:
        texts = answers(llm, examples)
    if arguments.show_wrong:
        for example, text in zip(examples, texts, strict=True):
            if text != example.question.answer:
                print(f"{example.question}: got {text!r}")
    scores = score(examples, texts)
    scores["all"] = sum(good for good, _ in scores.values()), len(examples)
    print("| skill | right | of | per cent |\n| --- | ---: | ---: | ---: |")
    for skill, (good, count) in scores.items():
        print(f"| {skill} | {good} | {count} | {100 * good / count:.1f} |")


if __name__ == "__main__":
    main()
