"""A tokenizer of sentence pieces (llama.cpp calls it llama), as tokenizer.json has it: merges
follow from the scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

SPACE: Final = "▁"
_LONGEST: Final = 64
"""Characters of a piece that is looked at; longer ones are runs of one character."""


def sentence_pieces(
    tokens: Sequence[str],
    scores: Sequence[float],
    unknown: int | None,
    begins: bool,
    stated: Sequence[Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return the fields of tokenizer.json.

    `begins`: a space is put before a text; `stated`: merges, in place of scores.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    before = [{"type": "Prepend", "prepend": SPACE}] if begins else []
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
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins else []),
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
    """Return all pairs of pieces that are one together, the best first."""
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
