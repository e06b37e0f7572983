"""Questions about this engine, in many phrasings; some phrasings of each topic are held out."""

from __future__ import annotations

from typing import Final

from examples.demo_model.facts import FACTS, Fact
from examples.demo_model.items import Draw, Item

_PATTERNS: Final = (
    "What is {name}?",
    "what is {name}?",
    "what is {name}",
    "What is {name} here?",
    "What is {name} in this engine?",
    "Explain {name}.",
    "Explain {name}",
    "Please explain {name}.",
    "Explain {name} in a sentence.",
    "Tell me about {name}.",
    "Tell me something about {name}.",
    "Tell me what {name} is.",
    "Describe {name}.",
    "Describe {name} in a sentence.",
    "Can you explain {name}?",
    "Can you explain {name} to me?",
    "Could you tell me about {name}?",
    "What does {name} mean?",
    "What do you know about {name}?",
    "What can you say about {name}?",
    "What about {name}?",
    "I want to know about {name}.",
    "I have a question: what is {name}?",
    "Do you know {name}?",
    "Define {name}.",
    "How would you describe {name}?",
    "Help me understand {name}.",
    "I do not understand {name}.",
    "{name}?",
    "{name}",
    "Give me a short explanation of {name}.",
    "In a few words, what is {name}?",
)
_BEFORE: Final = ("", "", "", "", "Please: ", "Question: ")


def make(draw: Draw) -> Item:
    """Return one question with its answer."""
    if not draw.evaluation and draw.chance(0.15):
        fact = draw.one([fact for fact in FACTS if fact.questions])
        question = draw.one(fact.questions)
        key = ""
    else:
        fact, name, pattern = draw.own(lambda: _phrased(draw), lambda made: f"{made[1]}|{made[2]}")
        question = pattern.format(name=name)
        key = f"{name}|{pattern}"
        question = question if pattern.startswith("what") else question[:1].upper() + question[1:]
    return Item(
        "engine",
        (key,) if key else (),
        [{"role": "user", "content": draw.one(_BEFORE) + question}],
        fact.answer,
        thinking=draw.chance(0.7),
    )


def _phrased(draw: Draw) -> tuple[Fact, str, str]:
    fact = draw.one(FACTS)
    return fact, draw.one(fact.names), draw.one(_PATTERNS)
