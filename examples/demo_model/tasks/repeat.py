"""Repetition of invented words: teaches copying, which all other skills need."""

from __future__ import annotations

from typing import Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.words import LIST_WORDS, new_name, new_word

_PATTERNS: Final = (
    "Repeat: {text}",
    "Say this again: {text}",
    "Repeat after me: {text}",
    "Copy this: {text}",
    "Echo: {text}",
)


def make(draw: Draw) -> Item:
    """Return a row of new words, common words and numbers, to be repeated."""
    text = draw.own(lambda: " ".join(_word(draw) for _ in range(draw.number(3, 18))))
    question = draw.one(_PATTERNS).format(text=text)
    return Item(
        "repeat", (text,), [{"role": "user", "content": question}], text, thinking=draw.chance(0.7)
    )


def _word(draw: Draw) -> str:
    kind = draw.number(0, 5)
    if kind == 0:
        return str(draw.number(0, 999))
    if kind == 1:
        return draw.one(LIST_WORDS)
    return new_word(draw, 1, 3) if kind <= 3 else new_name(draw)
