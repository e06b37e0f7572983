"""Acceptance rate of the draft model on the demo model's answers."""

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
"""Number of draft tokens per step."""


def acceptance(
    target: Path, draft: Path, items: Iterable[Item], answers: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return, by skill, the numbers of accepted and of draft tokens in greedy decoding.

    `answers` are the target's own greedy answers. The draft model proposes `LOOK_AHEAD` tokens
    after the accepted ones; the target accepts those that agree and adds one of its own.
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
        answer_ids = [*tokenizer.encode(answer, add_special_tokens=False).ids, end]
        accepted, drafted = walk(model, prompt, answer_ids)
        counts[item.skill][0] += accepted
        counts[item.skill][1] += drafted
    return {skill: (pair[0], pair[1]) for skill, pair in counts.items()}


def walk(model: DemoModel, prompt: list[int], answer_ids: list[int]) -> tuple[int, int]:
    """Return the numbers of accepted and of draft tokens of one answer.

    While the draft model agrees its text is the target's, so one pass over the target's text gives
    all draft tokens up to the first wrong one. The next step starts after the target's correction.
    """
    best = _best_next(model, prompt + answer_ids)[len(prompt) - 1 : -1].tolist()
    agrees = [draft_token == token for draft_token, token in zip(best, answer_ids, strict=True)]
    at = accepted = drafted = 0
    while at < len(answer_ids):
        ahead = agrees[at : at + LOOK_AHEAD]
        run = ahead.index(False) if False in ahead else len(ahead)
        accepted = accepted + run
        drafted = drafted + len(ahead)
        at += run + 1
    return accepted, drafted


@torch.inference_mode()
def _best_next(model: DemoModel, ids: list[int]) -> Tensor:
    return model.logits(model(torch.tensor(ids), make_layout([plain_row(ids)]))).argmax(dim=-1)
