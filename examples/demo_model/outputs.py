"""Outputs of the demo model as tokens, for suffix decoding: answers to
training items, each once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from builtin_plugins.speculators.api import write_outputs
from examples.demo_model.chat import Chat
from examples.demo_model.mix import training_items

SEED: Final = 1000
"""Items that the shipped weights have not been trained on, of the same side of the split."""
COUNT: Final = 8000
"""Number of items to answer."""
STEP_ITEMS: Final = 64
OPENING: Final = 3
"""Tokens of the prompt before an answer, which say that one begins."""


def save_outputs(folder: Path, out: Path, count: int) -> int:
    """Write the answers to `count` items as the tokenizer in `folder` cuts them; return how many
    tokens they have.

    They are the items' own, which the model was trained to give; no model is run.
    """
    chat = Chat(Tokenizer.from_file(str(folder / "tokenizer.json")))
    answers: dict[tuple[int, ...], None] = {}
    for step in range(-(-count // STEP_ITEMS)):
        for item in training_items(SEED, step, STEP_ITEMS):
            tokens, is_answer = chat.encode(item)
            begin = len(is_answer) - is_answer[::-1].index(False)
            answers[tuple(tokens[begin - OPENING :])] = None
    write_outputs(out, answers)
    vocab_size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    stated = {"model_type": "suffix", "vocab_size": vocab_size}
    (out / "config.json").write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
    return sum(map(len, answers))
