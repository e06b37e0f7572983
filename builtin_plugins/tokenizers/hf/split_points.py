"""Finds safe split points of a tokenizer: splitting a text there does not change its tokens.

Candidates are the end of a word before a space or newline, and the start of a word after a newline.
A candidate is accepted if no token of the vocabulary crosses it, and if samples from the vocabulary
tokenize equally with and without the split, for any preceding text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from builtin_plugins.tokenizers.byte_level import byte_level_alphabet

Encode = Callable[[str], list[int]]

CANDIDATES: Final = (r"\w(?= )", r"\w(?=\n)", r"\n(?=\w)")
_WORD: Final = r"[\w\ufffd]"
_ACROSS: Final = (rf"{_WORD} ", rf"{_WORD}\n", rf"\n{_WORD}")
"""Patterns inside a token that crosses a candidate; a partial character may belong to a word."""
_SAMPLES: Final = 120
_PARTS: Final = (
    "a",
    "Zq",
    "é",
    "e\u0301",
    "ß",
    "漢字",
    "한",
    "й",
    "7",
    "2026",
    "_",
    ".",
    ",)",
    "'s",
    "-",
    "`",
    "🙂",
    "\u00a0",
    "\u3000",
)
_GAPS: Final = (" ", "\n", "  ", " \n", "\n ", "\n\n", "\t", "\r\n", "\n    ")


def find_split_points(
    encode: Encode, vocabulary: Mapping[str, int], specials: Sequence[str]
) -> re.Pattern[str] | None:
    """Return a pattern with safe split points at the ends of its matches; None without one.

    `encode` adds no special tokens. `vocabulary` has the tokenizer's spelling. `specials` are
    matched before tokenization; those that begin or end like a word may be at a split point.
    """
    texts = list({_token_text(token) for token in vocabulary})
    joined = "\0".join(texts)
    possible = [
        candidate
        for candidate, across in zip(CANDIDATES, _ACROSS, strict=True)
        if not re.search(across, joined)
    ]
    edged = [text for text in specials if re.match(r"\w", text) or re.search(r"\w$", text)]
    samples = list(_samples(texts, edged)) if possible else []
    safe = [
        candidate
        for candidate in possible
        if all(_holds(encode, re.compile(candidate), each) for each in samples)
    ]
    return re.compile("|".join(safe)) if safe else None


def _holds(encode: Encode, pattern: re.Pattern[str], text: str) -> bool:
    """Return whether splitting a text at each match leaves its tokens unchanged."""
    ids: list[int] | None = None
    for split in [match.end() for match in pattern.finditer(text)]:
        ids = encode(text) if ids is None else ids
        left = encode(text[:split])
        rest = ids[len(left) :]
        if left + rest != ids:
            return False
        for start in {split - 1, max(0, split - 3), split // 2}:
            context = encode(text[start:split])
            if encode(text[start:]) != context + rest:
                return False
    return True


def _samples(texts: Sequence[str], specials: Sequence[str]) -> Iterator[str]:
    """Yield texts that would reveal an unsafe split: split tokens, and all kinds of gaps and
    words.
    """
    rng = random.Random(0)
    words = sorted(word for word in texts if len(word.strip()) > 1 and "\ufffd" not in word)
    for _ in range(_SAMPLES):
        if words:
            token = rng.choice(words).strip()
            at = rng.randrange(1, len(token)) if len(token) > 1 else 0
            gap = rng.choice(_GAPS)
            first = rng.choice(words)
            yield f"{first}{token[:at]}{gap}{token[at:]}{rng.choice(_GAPS)}{rng.choice(words)}"
        yield "".join(
            rng.choice(_PARTS) + rng.choice(("", "", *_GAPS)) for _ in range(rng.randrange(2, 12))
        )
    for special in specials:  # some absorb adjacent spaces
        yield f"x {special} y\n{special}\n{special} {special}7"


def _token_text(token: str) -> str:
    """Return a token's text (spaces, newlines, words) from byte-level, SentencePiece or plain
    spelling.
    """
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token).decode("utf-8", "replace")
    return token.replace("▁", " ").replace("<0x0A>", "\n").replace("<0x20>", " ").removeprefix("##")


_BYTES: Final = byte_level_alphabet()
