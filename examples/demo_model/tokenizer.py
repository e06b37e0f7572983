"""The demo model's tokenizer: byte-level BPE in which digits stand alone and a name is the same
tokens anywhere.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.demo_model.chat import END, TEMPLATE, Chat, completion, token_id
from examples.demo_model.mix import training_items

CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Never part of an output's text."""
MARKERS: Final = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""One token each, and part of the text, for parsers."""
SCHEMA: Final = (
    '{"type": "function", "function": {"description": "',
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {',
    *(f'": {{"type": "{kind}' for kind in ("string", "integer", "number", "boolean", "array")),
    '", "enum": ["',
    '"}}, "required": ["',
)
"""The wording of tool schemas, which the model reads and never writes: one token each, which halves
such prompts.
"""
_PATTERN: Final = r"\p{{N}}|{space}\p{{Ll}}+|\p{{Lu}}\p{{Ll}}+|\p{{Lu}}+(?!\p{{Ll}})|[\p{{L}}\p{{M}}]+| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+|\s*\n+|\s+(?!\S)|\s+"
_SPACE: Final = "Ġ"
"""How byte-level BPE writes a space."""
_AFTER_SPACES: Final = 0.2
"""Share of the vocabulary that is a space and a word."""


def train_tokenizer(
    vocab_size: int, seed: int, steps: int = 60, step_items: int = 250
) -> Tokenizer:
    """Return a tokenizer learnt from the first conversations of the training data.

    Words are learnt without the space before them. The commonest lower-case ones are joined to it
    afterwards, as last merges, so an invented word has the same tokens after a space, a quote
    and an underscore.
    """
    texts = _texts(seed, steps, step_items)
    num_joined = int(vocab_size * _AFTER_SPACES)
    tokenizer = _byte_level(models.BPE(), space="")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - num_joined - len(CONTROL) - len(MARKERS) - len(SCHEMA),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    learnt = json.loads(tokenizer.to_str())["model"]
    vocab = learnt["vocab"]
    merges = [tuple(pair) for pair in learnt["merges"]]
    counts = Counter(word for text in texts for word in re.findall("(?<= )[a-z]+", text))
    for word in [word for word, _ in counts.most_common() if word in vocab][:num_joined]:
        merges.append((_SPACE, word))
        vocab[_SPACE + word] = len(vocab)
    tokenizer = _byte_level(models.BPE(vocab=vocab, merges=merges), space=" ?")
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in (*MARKERS, *SCHEMA)]
    )
    return tokenizer


def _byte_level(model: Any, space: str) -> Tokenizer:
    """Return a tokenizer of whole words; `space` says what a lower-case one takes with it."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN.format(space=space)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
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
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2) + "\n", encoding="utf-8"
    )
    (folder / "chat_template.jinja").write_text(
        TEMPLATE.read_text(encoding="utf-8").rstrip("\n"), encoding="utf-8"
    )


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids that end and fill up sequences, as config files name them."""
    return {
        "eos_token_id": token_id(tokenizer, END),
        "pad_token_id": token_id(tokenizer, "<|endoftext|>"),
    }


def _texts(seed: int, steps: int, step_items: int) -> list[str]:
    """Return the first conversations, with a line break for each fixed token."""
    chat = Chat()
    fixed = re.compile("|".join(map(re.escape, (*CONTROL, *MARKERS, *SCHEMA))))
    items = (item for step in range(steps) for item in training_items(seed, step, step_items))
    return [fixed.sub("\n", chat.prompt(item) + completion(item)) for item in items]
