"""Copying, reversing, sorting and upper-casing short lists of common words."""

from __future__ import annotations

from typing import Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.words import LIST_WORDS

_PATTERNS: Final = {
    "copy": (
        "Copy this list: {words}",
        "Repeat these words: {words}",
        "Repeat: {words}",
        "Please copy: {words}",
        "Say these words again: {words}",
        "Repeat this list: {words}",
    ),
    "reverse": (
        "Reverse this list: {words}",
        "Reverse these words: {words}",
        "Reverse: {words}",
        "Please reverse the order: {words}",
        "Write this list backwards: {words}",
        "Put these words in reverse order: {words}",
    ),
    "sort": (
        "Sort this list: {words}",
        "Sort these words: {words}",
        "Sort: {words}",
        "Sort these words alphabetically: {words}",
        "Please sort: {words}",
        "Put these words in alphabetical order: {words}",
    ),
    "upper-case": (
        "Write this list in capitals: {words}",
        "Write these words in capital letters: {words}",
        "Upper-case: {words}",
        "Make these words upper case: {words}",
        "Put these words in capitals: {words}",
        "Write in capitals: {words}",
    ),
}


def make(draw: Draw, operation: str | None = None) -> Item:
    """Return one list with what to do to it."""
    kind = operation or draw.one(("copy", "reverse", "sort", "sort", "sort", "upper-case"))
    words = draw.own(
        lambda: draw.some(LIST_WORDS, draw.number(2, 6)), lambda listed: _key(kind, listed)
    )
    joint = draw.one((", ", ", ", " "))
    return Item(
        "lists",
        (_key(kind, words),),
        [{"role": "user", "content": draw.one(_PATTERNS[kind]).format(words=joint.join(words))}],
        joint.join(done(kind, words)),
        thinking=draw.chance(0.7),
        variant=kind,
    )


def done(kind: str, words: list[str]) -> list[str]:
    """Return the words with the operation done to them."""
    if kind == "reverse":
        return words[::-1]
    if kind == "sort":
        return sorted(words)
    return [word.upper() for word in words] if kind == "upper-case" else words


def _key(kind: str, words: list[str]) -> str:
    # The same words in another order are the same item of sorting, and another one of everything
    # else.
    return f"{kind}:{' '.join(sorted(words) if kind == 'sort' else words)}"
