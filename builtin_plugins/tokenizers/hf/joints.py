"""Where a text may be cut so that its parts are tokenized as the whole is: shown of each tokenizer,
not assumed.

Candidates are a word's end before a space or a line's end, and a word's beginning behind a line's
end. Tokenizers of most kinds never join what is on both sides of these. A candidate counts if no
token of the vocabulary reaches across it, and if samples made of that vocabulary come out the same
cut and whole, whatever stands before the cut.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

Encode = Callable[[str], list[int]]

CANDIDATES: Final = (r"\w(?= )", r"\w(?=\n)", r"\n(?=\w)")
_WORD: Final = r"[\w\ufffd]"
_ACROSS: Final = (rf"{_WORD} ", rf"{_WORD}\n", rf"\n{_WORD}")
"""What a token would have inside that reaches across; half a character may be of a word."""
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


def find_joints(
    encode: Encode, vocabulary: Mapping[str, int], specials: Sequence[str]
) -> re.Pattern[str] | None:
    """Return a pattern at whose ends texts may be cut, or None.

    `encode` adds no special tokens; `vocabulary` is as the tokenizer spells it, `specials` are
    found in texts before all else: those that begin or end as a word does may stand at a joint.
    """
    spoken = list({_spoken(token) for token in vocabulary})
    joined = "\0".join(spoken)
    possible = [
        candidate
        for candidate, across in zip(CANDIDATES, _ACROSS, strict=True)
        if not re.search(across, joined)
    ]
    edged = [text for text in specials if re.match(r"\w", text) or re.search(r"\w$", text)]
    samples = list(_samples(spoken, edged)) if possible else []
    shown = [
        candidate
        for candidate in possible
        if all(_holds(encode, re.compile(candidate), each) for each in samples)
    ]
    return re.compile("|".join(shown)) if shown else None


def _holds(encode: Encode, joint: re.Pattern[str], text: str) -> bool:
    """Say whether every cut of a text leaves its tokens as they are."""
    ids: list[int] | None = None
    for place in [match.end() for match in joint.finditer(text)]:
        ids = encode(text) if ids is None else ids
        left = encode(text[:place])
        rest = ids[len(left) :]
        if left + rest != ids:
            return False
        for start in {place - 1, max(0, place - 3), place // 2}:
            context = encode(text[start:place])
            if encode(text[start:]) != context + rest:
                return False
    return True


def _samples(spoken: Sequence[str], specials: Sequence[str]) -> Iterator[str]:
    """Yield texts that would show a joint that is none: tokens taken apart, and gaps of all kinds
    between all kinds of words.
    """
    rng = random.Random(0)
    words = sorted(word for word in spoken if len(word.strip()) > 1 and "\ufffd" not in word)
    for _ in range(_SAMPLES):
        if words:
            token = rng.choice(words).strip()
            at = rng.randrange(1, len(token)) if len(token) > 1 else 0
            gap = rng.choice(_GAPS)
            yield f"{rng.choice(words)}{token[:at]}{gap}{token[at:]}{rng.choice(_GAPS)}{rng.choice(words)}"
        yield "".join(
            rng.choice(_PARTS) + rng.choice(("", "", *_GAPS)) for _ in range(rng.randrange(2, 12))
        )
    for special in specials:  # some eat the space beside them
        yield f"x {special} y\n{special}\n{special} {special}7"


def _spoken(token: str) -> str:
    """Return what a token says, as far as spaces, line ends and words go: byte-level,
    SentencePiece's and plain spelling.
    """
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token).decode("utf-8", "replace")
    return token.replace("▁", " ").replace("<0x0A>", "\n").replace("<0x20>", " ").removeprefix("##")


def _byte_alphabet() -> dict[str, int]:
    """Return the byte each character of byte-level spelling stands for: printable ones themselves,
    others from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_BYTES: Final = _byte_alphabet()
