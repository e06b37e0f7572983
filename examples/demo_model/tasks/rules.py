"""A simple rule in the system prompt that every answer obeys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.tasks import engine_facts, lists, small_talk
from examples.demo_model.words import ANIMALS, COLOURS, LIST_WORDS, NATURE, new_name, new_word

Rule = tuple[str, tuple[str, ...], Callable[[str, str], str]]
RULES: Final[tuple[Rule, ...]] = (
    (
        "end",
        (
            "Always end with {w}.",
            "Always end your answer with {w}.",
            "End every answer with the word {w}.",
            "Finish each answer with {w}.",
            "The last word of your answer is always {w}.",
        ),
        lambda answer, word: f"{answer} {word}",
    ),
    (
        "begin",
        (
            "Always begin with {w}.",
            "Begin each answer with {w}.",
            "Start every answer with the word {w}.",
            "Always start your answer with {w}.",
            "The first word of your answer is always {w}.",
        ),
        lambda answer, word: f"{word} {answer}",
    ),
    (
        "capitals",
        ("Answer in capitals.", "Always answer in capital letters.", "Write everything in capitals.", "Use capital letters only."),
        lambda answer, word: answer.upper(),
    ),
    (
        "lower case",
        ("Answer in lower case.", "Use no capital letters.", "Always write in lower case.", "Never use capitals."),
        lambda answer, word: answer.lower(),
    ),
    (
        "only",
        (
            "Always answer just {w}.",
            "Answer every question with {w}.",
            "Whatever is asked, say {w}.",
            "Only ever say {w}.",
        ),
        lambda answer, word: word,
    ),
    (
        "address",
        ("Call the user {w}.", "Address the user as {w}.", "The user is called {w}; say so in each "
                                                           "answer."),
        lambda answer, word: f"{word}, {answer}",
    ),
    (
        "brackets",
        ("Put your answer in brackets.", "Answer in brackets.", "Write every answer in brackets."),
        lambda answer, word: f"[{answer}]",
    ),
)  # fmt: skip
_LONGEST_RESPELLED: Final = 130
"""Maximum characters of an answer in capitals or in lower case."""
_BEFORE: Final = (
    "",
    "",
    "",
    "You are a helpful assistant. ",
    "You are a small model. ",
    "Be short. ",
)


def make(draw: Draw) -> Item:
    """Return one rule, one question, and the answer that obeys."""
    return draw.own(lambda: _obeyed(draw), lambda item: item.keys[0])


def _obeyed(draw: Draw) -> Item:
    source = draw.one((small_talk, small_talk, lists, engine_facts))
    name, wordings, obey = draw.one(RULES)
    item = source.make(draw)
    while name in ("capitals", "lower case") and len(item.answer) > _LONGEST_RESPELLED:
        item = source.make(draw)
    word = _word(draw, name)
    rule = draw.one(wordings).format(w=word)
    question = item.messages[0]["content"]
    return Item(
        "rules",
        (f"{rule}|{question}",),
        [
            {"role": "system", "content": draw.one(_BEFORE) + rule},
            {"role": "user", "content": question},
        ],
        obey(item.answer, word),
        thinking=draw.chance(0.7),
        variant=name,
    )


def _word(draw: Draw, rule: str) -> str:
    if rule == "address":
        return (
            draw.one(("Captain", "Doctor", "Professor", "Boss", "friend"))
            if draw.chance(0.4)
            else new_name(draw)
        )
    word = (
        draw.one([*ANIMALS, *COLOURS, *NATURE, *LIST_WORDS]) if draw.chance(0.6) else new_word(draw)
    )
    return draw.one((word, word.upper(), word.capitalize()))
