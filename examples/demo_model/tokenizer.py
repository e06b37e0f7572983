"""The demo model's tokenizer: byte-level BPE in which digits stand alone and a name is the same tokens anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.demo_model.chat import END, TEMPLATE, Chat, completion, token_id
from examples.demo_model.mix import training_items

CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Never part of an output's text."""
MARKERS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""One token each, and part of the text: what parsers look for."""
SCHEMA: Final = (
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {',
    *(f'": {{"type": "{kind}' for kind in ("string", "integer", "number", "boolean", "array")),
    '", "enum": ["',
    '"}}, "required": ["',
)
"""The wording of tool schemas, which the model reads and never writes: one token each, which halves such prompts."""
# Only lower-case words take the space before them: a name is the same tokens behind a space and behind a quote.
PATTERN: Final = (
    r"\p{N}| ?\p{Ll}+|\p{Lu}\p{Ll}+|\p{Lu}+(?!\p{Ll})|[\p{L}\p{M}]+| ?[^\s\p{L}\p{M}\p{N}]+|\s*\n+|\s+(?!\S)|\s+"
)


def train_tokenizer(vocab_size: int, seed: int, steps: int = 60, step_items: int = 250) -> Tokenizer:
    """Return a tokenizer learnt from the first conversations of the training data."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL) - len(MARKERS) - len(SCHEMA),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, steps, step_items), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*MARKERS, *SCHEMA)])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """Write tokenizer, its settings and the chat template as Hugging Face folders have them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text(encoding="utf-8").rstrip("\n"), encoding="utf-8")


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids that end and fill up sequences, as config files name them."""
    return {"eos_token_id": token_id(tokenizer, END), "pad_token_id": token_id(tokenizer, "<|endoftext|>")}


def _texts(seed: int, steps: int, step_items: int) -> Iterable[str]:
    chat = Chat()
    for step in range(steps):
        for item in training_items(seed, step, step_items):
            text = chat.prompt(item) + completion(item)
            for marker in (*CONTROL, *MARKERS, *SCHEMA):
                text = text.replace(marker, "\n")
            yield text
