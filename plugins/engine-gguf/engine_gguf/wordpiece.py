"""A tokenizer of word pieces (llama.cpp calls it bert), as tokenizer.json has it.

The file has words with a mark in front of their first piece; BERT marks the pieces that go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.api import ModelError
from engine_gguf.pieces import SPACE


def word_pieces(
    tokens: Sequence[str],
    special: Sequence[bool],
    unknown: int | None,
    *,
    lower: bool,
    strip: bool | None,
) -> dict[str, Any]:
    """Return the fields of tokenizer.json; `special` says of each token whether it is spelt as it
    stands.

    Raises `ModelError` without a token for unknown words.
    """
    if unknown is None:
        raise ModelError(
            "its tokenizer has no token for unknown words. Give the tokenizer of the model it was "
            "made from with --tokenizer."
        )
    spelt = [token if own else _piece(token) for token, own in zip(tokens, special, strict=True)]
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(spelt):
        vocabulary.setdefault(token if token not in vocabulary else f"<{token}:{number}>", number)
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": strip,
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": spelt[unknown],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _piece(token: str) -> str:
    return token.removeprefix(SPACE) if token.startswith(SPACE) else f"##{token}"
