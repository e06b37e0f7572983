"""Tokenizers built from a file's settings give the ids of the original, or of their definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_gguf.header import Header
from engine_gguf.settings import Settings
from engine_gguf.source import find
from engine_gguf.splits import SPLITS
from engine_gguf.tokenizer import tokenizer_files
from engine_gguf.tokenizer_models import byte_level_bpe, sentencepiece_bpe
from tokenizers import Tokenizer

from core.api import ModelError
from core.config.build import config_from_kwargs

Made = Callable[..., tuple[Path, Path]]
TEXTS = [
    "Hello there",
    "  two  spaces\n\nand lines",
    "numbers 12345",
    "ümläuts and 日本",
    "<|im_start|>hi<|im_end|>",
    "",
]


def test_byte_level_tokenizer_matches_the_original(made: Made) -> None:
    file, plain = made("LlamaForCausalLM", "Q8_0", tie_word_embeddings=True)
    config: Any = config_from_kwargs({"model": str(file)})
    source = find(str(file), config)
    own, other = (
        Tokenizer.from_file(str(Path(folder) / "tokenizer.json")) for folder in (source.path, plain)
    )
    for text in TEXTS:
        ids = own.encode(text).ids
        assert ids == other.encode(text).ids
        assert own.decode(ids, skip_special_tokens=False) == other.decode(
            ids, skip_special_tokens=False
        )
    settings = json.loads((Path(str(source.path)) / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in settings["chat_template"]
    assert source.eos_token_ids[0] == own.token_to_id("<|im_end|>")
    assert find(str(file), config).path == source.path


def best_pairs(text: str, pieces: dict[str, float]) -> list[str]:
    """Return the SentencePiece tokens of a text: merge the best-scored neighbours repeatedly."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (pieces[a + b], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in pieces
        ]
        if not pairs:
            return parts
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_sentencepiece_merges_follow_scores() -> None:
    letters = "▁abcdehlorstw"
    words = [
        "he",
        "ll",
        "llo",
        "hello",
        "▁hello",
        "▁w",
        "or",
        "ld",
        "wor",
        "▁wor",
        "▁world",
        "▁t",
        "the",
        "▁the",
        "at",
    ]
    pieces = {word: -float(rank) for rank, word in enumerate(words)} | dict.fromkeys(
        letters, -1000000.0
    )
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    scores = [0.0] * 259 + list(pieces.values())
    fields = {
        "version": "1.0",
        "added_tokens": [],
        "post_processor": None,
        **sentencepiece_bpe(tokens, scores, 0, True),
    }
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    for text in ("hello world", "the hat or tort", "held at rest", "hello hello"):
        encoded = tokenizer.encode(text)
        assert encoded.tokens == best_pairs(text, pieces)
        assert tokenizer.decode(encoded.ids) == text
    assert tokenizer.encode("z").tokens == ["▁", "<0x7A>"]


def test_unknown_pretokenizers_and_merges_are_rejected() -> None:
    with pytest.raises(ModelError, match=r"tokenizer.ggml.pre: got 'qwen9'"):
        byte_level_bpe(["a", "b"], [], "qwen9")
    with pytest.raises(ModelError, match="1 of its tokenizer's 1 merges"):
        byte_level_bpe(["a", "b"], ["a b"], "qwen2")


@pytest.mark.parametrize("splits", SPLITS)
def test_every_pretokenizer_is_valid(splits: str) -> None:
    alphabet = [chr(n) for n in range(33, 127)] + ["Ġ", "Ċ"]
    fields = {
        "version": "1.0",
        "added_tokens": [],
        "post_processor": None,
        **byte_level_bpe(alphabet, [], splits),
    }
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    text = "It's 2024, HELLO world's end:\n(ok) a/b"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def settings_of(**stated: Any) -> Settings:
    """Return the settings of a file with a byte-level tokenizer."""
    tokens = [*(chr(n) for n in range(33, 127)), "Ġ", "<s>", "</s>"]
    kinds = np.array([1] * (len(tokens) - 2) + [3, 3], np.int32)
    common = {
        "model": "gpt2",
        "tokens": tokens,
        "merges": [],
        "token_type": kinds,
        "bos_token_id": 95,
        "eos_token_id": 96,
    }
    named = {f"tokenizer.ggml.{name}": value for name, value in {**common, **stated}.items()}
    return Settings(Header(Path("a.gguf"), {"general.architecture": "llama", **named}, ()))


@pytest.mark.parametrize(
    ("stated", "around"),
    [
        ({"pre": "qwen2"}, [*"ab"]),
        ({"pre": "llama-bpe"}, ["<s>", *"ab"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, [*"ab"]),
        ({"pre": "qwen2", "add_bos_token": True, "add_eos_token": True}, ["<s>", *"ab", "</s>"]),
    ],
    ids=str,
)
def test_special_tokens_follow_the_file(stated: dict[str, Any], around: list[str]) -> None:
    tokenizer = Tokenizer.from_str(
        json.dumps(tokenizer_files(settings_of(**stated))["tokenizer.json"])
    )
    assert tokenizer.encode("ab").tokens == around


@pytest.mark.parametrize(
    ("splits", "parts"),
    [
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5"]),
        ("gpt-2", ["It", "'s", "Ġ12345"]),
        ("gpt-4o", ["It's", "Ġ", "123", "45"]),
        ("afmoe", ["It", "'s", "Ġ", "12", "345"]),
        ("default", ["It", "'", "s", "Ġ", "123", "45"]),
    ],
)
def test_pretokenizer_splits_like_the_family(splits: str, parts: list[str]) -> None:
    found = tokenizer_files(settings_of(pre=splits))["tokenizer.json"]
    tokenizer = Tokenizer.from_str(json.dumps(found))
    assert [part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str("It's 12345")] == parts
