"""WordPiece, Unigram and listed-merges tokenizers built from a file's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_gguf.header import Header
from engine_gguf.settings import Settings
from engine_gguf.tokenizer import tokenizer_files
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from core.api import ModelError

BERT = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "hello",
    "world",
    "##s",
    "un",
    "##able",
    "a",
    "b",
    "##b",
    "!",
    ",",
]
TEXTS = ["Hello worlds!", "unable,hello", "abb ba", "Ünable", "  hello   world ", "日 a", ""]
UNIGRAM = {
    "<unk>": 0.0,
    "<s>": 0.0,
    "</s>": 0.0,
    "▁": -2.0,
    "▁he": -3.0,
    "llo": -3.5,
    "▁hello": -6.0,
    "h": -9.0,
    "e": -9.0,
    "l": -9.0,
    "o": -9.0,
    "▁w": -4.0,
    "or": -4.0,
    "ld": -4.0,
    "▁world": -13.0,
}
Array = np.ndarray[Any, Any]


def stated(kind: str, tokens: list[str], types: list[int], **more: Any) -> Settings:
    named = {"model": kind, "tokens": tokens, "token_type": np.array(types, np.int32), **more}
    prefixed = {
        f"tokenizer.ggml.{name}": value for name, value in named.items() if value is not None
    }
    return Settings(Header(Path("a.gguf"), {"general.architecture": "bert", **prefixed}, ()))


def wordpiece_settings(**more: Any) -> Settings:
    """Return the settings that converters write: first pieces marked, others bare."""
    spelt = [
        token if token[0] == "[" else token[2:] if token[:2] == "##" else f"▁{token}"
        for token in BERT
    ]
    types = [3 if token[0] == "[" else 1 for token in BERT]
    return stated("bert", spelt, types, **more)


def unigrams(**more: Any) -> Settings:
    scores = np.array(list(UNIGRAM.values()), np.float32)
    types = [2, 3, 3, *[1] * (len(UNIGRAM) - 3)]
    return stated(
        "t5",
        list(UNIGRAM),
        types,
        **{"scores": scores, "eos_token_id": 2, "bos_token_id": 1, **more},
    )


def made(settings: Settings) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_files(settings)["tokenizer.json"]))


@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece_matches_bert(lower: bool) -> None:
    expected = Tokenizer(
        models.WordPiece(vocab={token: n for n, token in enumerate(BERT)}, unk_token="[UNK]")
    )
    expected.normalizer = normalizers.BertNormalizer(lowercase=lower)  # type: ignore[assignment,unused-ignore]
    expected.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment,unused-ignore]
    own = made(wordpiece_settings(**({} if lower else {"normalizer.lowercase": False})))
    for text in TEXTS:
        assert own.encode(text).ids == [2, *expected.encode(text).ids, 3]
    assert own.decode(own.encode("hello worlds").ids) == "hello worlds"


def test_special_token_ids_may_differ() -> None:
    assert made(wordpiece_settings(cls_token_id=9, seperator_token_id=10)).encode("hello").ids == [
        9,
        4,
        10,
    ]


def best(text: str) -> list[str]:
    """Return the most likely pieces of a text, by exhaustive search."""
    found: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        ways = [
            (found[start][0] + UNIGRAM[text[start:end]], [*found[start][1], text[start:end]])
            for start in range(end)
            if text[start:end] in UNIGRAM and found[start][0] > -np.inf
        ]
        found.append(max(ways, default=(-np.inf, [])))
    return found[-1][1]


def test_unigram_picks_the_likeliest_pieces() -> None:
    own = made(unigrams())
    for words in (["hello", "world"], ["hell"], ["hello", "hello"]):
        expected = [piece for word in words for piece in best(f"▁{word}")]
        assert own.encode(" ".join(words)).tokens == [*expected, "</s>"]
        assert own.decode(own.encode("  ".join(words)).ids) == " ".join(words)
    assert made(unigrams(add_bos_token=True, add_eos_token=False)).encode("hello").tokens == [
        "<s>",
        *best("▁hello"),
    ]


def test_listed_merges_replace_scores() -> None:
    tokens = ["<unk>", "<s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "a", "b", "ab", "▁ab"]
    types = [2, 3, *[6] * 256, *[1] * 5]
    settings = stated(
        "gemma4", tokens, types, merges=["a b", "▁ ab"], bos_token_id=1, add_space_prefix=False
    )
    assert made(settings).encode("ab ab").tokens == ["<s>", "ab", "▁ab"]


def a_map(words: int, unit: int, rest: bytes) -> Array:
    units = np.full(words, unit, "<u4").tobytes()
    return np.frombuffer(len(units).to_bytes(4, "little") + units + rest, np.uint8)


DAMAGED = {
    "cut off": a_map(256, 0, b"")[:100],
    "empty length": np.zeros(8, np.uint8),
    "length of the largest": np.full(64, 255, np.uint8),
    "steps that lead out of it": a_map(256, 0x7FFFFC00, b"a\0"),
    "texts after it": a_map(256, 0x80000009, b"a\0"),
    "texts that are none": a_map(256, 0, b"\xff\xfe"),
    "wide numbers": np.zeros(300, np.int64),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_invalid_character_map_is_rejected(name: str) -> None:
    with pytest.raises(ModelError, match="character map"):
        tokenizer_files(unigrams(precompiled_charsmap=DAMAGED[name]))


REFUSED: dict[str, tuple[Settings, str]] = {
    "no token for unknown words": (
        stated("bert", ["▁a", "b"], [1, 1]),
        "no unknown token",
    ),
    "no token for unknown pieces": (
        stated("t5", ["a", "b"], [1, 1], scores=np.zeros(2)),
        "no unknown token",
    ),
    "scores that are no numbers": (
        unigrams(scores=np.full(len(UNIGRAM), np.nan, np.float32)),
        "not finite",
    ),
    "scores of other tokens": (unigrams(scores=np.zeros(3, np.float32)), "a list of 15 numbers"),
    "no scores": (unigrams(scores=None), "tokenizer.ggml.scores is missing"),
    "a map that is a text": (unigrams(precompiled_charsmap="x"), "a list of bytes"),
    "types of other tokens": (stated("bert", BERT, [1]), "a list of 14 numbers"),
    "a first token that there is not": (
        wordpiece_settings(cls_token_id=2**60),
        "one of the 14 tokens",
    ),
    "merges of others": (
        stated("gemma4", ["<unk>", "a"], [2, 1], merges=["a b"]),
        "1 of its tokenizer's 1 merges",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_tokenizer_settings_are_rejected(name: str) -> None:
    settings, wrong = REFUSED[name]
    with pytest.raises(ModelError, match=wrong):
        tokenizer_files(settings)


@pytest.mark.parametrize(
    "tokens", [["[UNK]"] * 9, ["[UNK]", *[""] * 8], ["[UNK]", *["\0", "▁", "##", "▁▁"] * 2]]
)
def test_unusual_wordpieces_are_accepted(tokens: list[str]) -> None:
    own = made(stated("bert", tokens, [3, *[1] * 8]))
    assert all(0 <= token < 9 for token in own.encode("hello [UNK] ##").ids)
