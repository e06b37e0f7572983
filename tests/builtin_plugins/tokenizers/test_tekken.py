"""tekken.json gives the ids of tiktoken's algorithm, with special tokens first."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings
from builtin_plugins.tokenizers.hf.tekken import ROLES
from core.errors import ModelError

WORDS = ("th", "he", "the", " the", "in", "ing", "é", " 3")
PIECES = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS)]
NUM_SPECIAL = 6
NAMED = ("<unk>", "<s>", "</s>", "[INST]")
GIVEN: dict[str, Any] = {
    "config": {
        "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
        "default_vocab_size": NUM_SPECIAL + len(PIECES) - 1,  # the last one is cut off
        "default_num_special_tokens": NUM_SPECIAL,
        "version": "v7",
    },
    "vocab": [
        {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for rank, piece in enumerate(PIECES)
    ],
    "special_tokens": [
        {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(NAMED)
    ],
}


def tiktoken_ids(word: str) -> list[int]:
    """Return the ids of one word: the pair with the lowest rank is merged first."""
    ranks = {piece: rank for rank, piece in enumerate(PIECES[:-1])}
    parts = [bytes([byte]) for byte in word.encode()]
    while True:
        pairs = [(ranks.get(a + b), i) for i, (a, b) in enumerate(pairwise(parts))]
        known = [(rank, i) for rank, i in pairs if rank is not None]
        if not known:
            return [ranks[part] + NUM_SPECIAL for part in parts]
        at = min(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def opened(folder: Path, **changes: Any) -> FastTokenizer:
    path = folder / "tekken.json"
    path.write_text(json.dumps({**GIVEN, **changes}))
    return FastTokenizer(path, TokenizerSettings(special_tokens=dict(ROLES)))


def test_ids_are_those_of_tiktoken(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path)
    words = ("The", " the", " thing", " é", "3", "!?")
    expected = [token for word in words for token in tiktoken_ids(word)]
    assert tokenizer.encode("".join(words), add_special_tokens=False) == expected
    assert tokenizer.encode("he") == [1, *tiktoken_ids("he")]
    assert tokenizer.decode(expected) == "".join(words)


def test_special_tokens_have_the_first_ids(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path)
    assert tokenizer.encode("[INST]<SPECIAL_5>", add_special_tokens=False) == [3, 5]
    assert tokenizer.eos_token_id == 2
    assert tokenizer.vocab_size == NUM_SPECIAL + len(PIECES) - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab": GIVEN["vocab"][1:]}, "got ranks that are not those of its entries"),
        ({"special_tokens": None}, "expected config, vocab and special_tokens"),
        ({"special_tokens": [{"rank": 9, "token_str": "<s>"}]}, "got ranks that are not"),
    ],
)
def test_broken_files_are_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=rf"tekken.json: .*{message}"):
        opened(tmp_path, **changes)
