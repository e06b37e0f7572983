"""How many of the demo model's tokens the draft model would have guessed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.demo_model.chat import END, Chat, token_id
from examples.demo_model.items import Item
from examples.demo_model.layout import make_layout, plain_row
from examples.demo_model.model import DemoModel, load_model

LOOK_AHEAD: Final = 4
"""Tokens guessed at a time."""


def acceptance(
    target: Path, draft: Path, items: Iterable[Item], answers: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return, by skill, how many guessed tokens are accepted, and how many are guessed, in greedy
    decoding.

    `answers` are the target's own greedy answers. The draft guesses `LOOK_AHEAD` tokens from what
    is accepted so far; the target takes those that agree and adds one of its own.
    """
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    if tokenizer.get_vocab() != Tokenizer.from_file(str(draft / "tokenizer.json")).get_vocab():
        raise ValueError(
            f"{draft} and {target} have different tokenizers; give `train --draft` the model's "
            "folder as --tokenizer."
        )
    model = load_model(draft)
    chat = Chat(tokenizer)
    end = token_id(tokenizer, END)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for item, answer in zip(items, answers, strict=True):
        prompt = tokenizer.encode(chat.prompt(item), add_special_tokens=False).ids
        said = [*tokenizer.encode(answer, add_special_tokens=False).ids, end]
        accepted, guessed = walk(model, prompt, said)
        counts[item.skill][0] += accepted
        counts[item.skill][1] += guessed
    return {skill: (pair[0], pair[1]) for skill, pair in counts.items()}


def walk(model: DemoModel, prompt: list[int], said: list[int]) -> tuple[int, int]:
    """Return accepted and guessed tokens of one answer.

    As long as the draft agrees its own text is the target's, so one pass over the target's text
    tells all its guesses up to the first wrong one; behind that one the target sets it right, and
    the next round begins.
    """
    best = _best_next(model, prompt + said)[len(prompt) - 1 : -1].tolist()
    agrees = [guess == token for guess, token in zip(best, said, strict=True)]
    at = accepted = guessed = 0
    while at < len(said):
        ahead = agrees[at : at + LOOK_AHEAD]
        run = ahead.index(False) if False in ahead else len(ahead)
        accepted = accepted + run
        guessed = guessed + len(ahead)
        at += run + 1
    return accepted, guessed


@torch.inference_mode()
def _best_next(model: DemoModel, ids: list[int]) -> Tensor:
    return model.logits(model(torch.tensor(ids), make_layout([plain_row(ids)]))).argmax(dim=-1)
