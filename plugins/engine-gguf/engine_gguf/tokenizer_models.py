"""Tokenizer models in the layout of tokenizer.json.

Byte-level BPE (llama.cpp: gpt2), SentencePiece BPE (llama), WordPiece (bert) and Unigram (t5).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from core.api import ModelError, did_you_mean
from engine_gguf.splits import IGNORES_MERGES, SPLITS


def byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], splits: str) -> dict[str, Any]:
    """Return the fields of tokenizer.json.

    Raises `ModelError` for invalid merges and unknown pre-tokenizers.
    """
    if splits not in SPLITS:
        raise ModelError(
            f"tokenizer.ggml.pre: got {splits!r:.60}, which is "
            f"unknown{did_you_mean(splits, SPLITS) or '.'} Give the tokenizer of the model it was "
            "made from with --tokenizer."
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    known = known_merges(vocabulary, merges)
    steps = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in SPLITS[splits]
    ]
    as_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, as_bytes]},
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "fuse_unk": False,
            "ignore_merges": splits in IGNORES_MERGES,
            "vocab": vocabulary,
            "merges": known,
        },
    }


def known_merges(vocabulary: Mapping[str, int], merges: Sequence[str]) -> list[list[str]]:
    """Return the merged pairs. Raises `ModelError` for pairs with unknown tokens."""
    pairs = [merge.split(" ", 1) for merge in merges]
    known = [
        pair for pair in pairs if len(pair) == 2 and pair[0] in vocabulary and pair[1] in vocabulary
    ]
    known = [pair for pair in known if pair[0] + pair[1] in vocabulary]
    if len(known) < len(pairs):
        raise ModelError(
            f"{len(pairs) - len(known)} of its tokenizer's {len(pairs)} merges have unknown "
            "tokens. Give the tokenizer of the model it was made from with --tokenizer."
        )
    return known


SPACE: Final = "▁"
_LONGEST: Final = 64
"""Maximum characters of a merged piece; longer ones are runs of one character."""


def sentencepiece_bpe(
    tokens: Sequence[str],
    scores: Sequence[float],
    unknown: int | None,
    adds_space: bool,
    stated: Sequence[Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return the fields of tokenizer.json.

    `adds_space`: a space is added before a text. `stated`: merges, used instead of scores.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    before = [{"type": "Prepend", "prepend": SPACE}] if adds_space else []
    back = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, replaced]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                *back,
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if adds_space else []),
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": None if unknown is None else tokens[unknown],
            "byte_fallback": True,
            "fuse_unk": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges(vocabulary, scores) if stated is None else stated,
        },
    }


def merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """Return all pairs of pieces that form a piece, best score first."""
    found = sorted(_pairs(vocabulary, scores), reverse=True)
    return [[left, right] for *_, left, right in found]


def _pairs(
    vocabulary: Mapping[str, int], scores: Sequence[float]
) -> Iterator[tuple[float, int, int, str, str]]:
    for piece, number in vocabulary.items():
        if len(piece) > _LONGEST:
            continue
        for at in range(1, len(piece)):
            left = piece[:at]
            right = piece[at:]
            first = vocabulary.get(left)
            second = vocabulary.get(right)
            if first is not None and second is not None:
                yield float(scores[number]), -first, -second, left, right


def wordpiece_model(
    tokens: Sequence[str],
    special: Sequence[bool],
    unknown: int | None,
    *,
    lower: bool,
    strip: bool | None,
) -> dict[str, Any]:
    """Return the fields of tokenizer.json; `special` marks tokens that are spelt literally.

    The file marks the first piece of a word; BERT marks the other pieces. Raises `ModelError`
    without a token for unknown words.
    """
    if unknown is None:
        raise ModelError(
            "its tokenizer has no unknown token. Give the tokenizer of the model it was made from "
            "with --tokenizer."
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


_GIVE: Final = "Give the tokenizer of the model it was made from with --tokenizer."
_LEAF: Final = 1 << 31
_WORD: Final = 4


def unigram_model(
    tokens: Sequence[str],
    scores: Sequence[float],
    unknown: int | None,
    *,
    has_bytes: bool,
    charsmap: np.ndarray[Any, Any] | None,
    adds_space: bool,
    collapses_spaces: bool,
) -> dict[str, Any]:
    """Return the fields of tokenizer.json.

    `adds_space`: a space is added before a text. `collapses_spaces`: repeated spaces become one.
    Raises `ModelError` for an invalid character map or scores, and without an unknown token.
    """
    if unknown is None or not np.isfinite(scores).all():
        what = "no unknown token" if unknown is None else "scores that are not finite"
        raise ModelError(f"its tokenizer has {what}. {_GIVE}")
    before: list[dict[str, Any]] = []
    if charsmap is not None and charsmap.size:
        before.append(
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(_checked(charsmap)).decode(),
            }
        )
    if collapses_spaces:
        before.append({"type": "Strip", "strip_left": False, "strip_right": True})
        before.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE})
    space = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always" if adds_space else "never",
        "split": True,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": before} if before else None,
        "pre_tokenizer": space,
        "decoder": space,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": has_bytes,
            "vocab": [[token, float(score)] for token, score in zip(tokens, scores, strict=True)],
        },
    }


def _checked(charsmap: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes of a character map.

    Every step must stay inside it, as the library does not check.
    """
    data = charsmap.astype(np.uint8, casting="unsafe").tobytes()
    size = int.from_bytes(data[:_WORD], "little")
    fits = (
        charsmap.dtype.itemsize == 1
        and size
        and size % (256 * _WORD) == 0
        and size + _WORD <= len(data)
    )
    if fits:
        units = np.frombuffer(data, "<u4", size // _WORD, _WORD).astype(np.int64)
        indices = np.arange(len(units))
        targets = indices ^ ((units >> 10) << ((units & 512) >> 6))
        leaves = units >= _LEAF
        fits = bool(
            (targets[~leaves] < len(units)).all()
            and (units[leaves] - _LEAF < len(data) - size - _WORD).all()
        )
    try:
        data[_WORD + size :].decode()
    except UnicodeDecodeError:
        fits = False
    if not fits:
        raise ModelError(
            f"its tokenizer's character map (precompiled_charsmap) is invalid. {_GIVE}"
        )
    return data
