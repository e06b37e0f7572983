"""Recall of a name, a city or a colour from earlier in the conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.tasks import engine_facts, lists, small_talk
from examples.demo_model.words import COLOURS, FOODS, city, first_name, new_name

_SUBJECTS: Final[dict[str, tuple[Callable[[Draw], str], tuple[str, ...], str, tuple[str, ...], str]]] = {
    "name": (
        lambda draw: first_name(draw) if draw.chance(0.3) else new_name(draw),
        ("My name is {v}.", "I am {v}.", "Hi, I am {v}.", "Call me {v}.", "Hello, my name is {v}.", "I'm {v}, nice to meet you."),
        "Nice to meet you, {v}!",
        ("What is my name?", "Who am I?", "Do you remember my name?", "what is my name?", "What am I called?", "Say my name."),
        "Your name is {v}.",
    ),
    "dog": (
        new_name,
        ("My dog is called {v}.", "I have a dog named {v}.", "My dog's name is {v}."),
        "{v} is a good name for a dog.",
        ("What is my dog called?", "What is the name of my dog?", "Do you remember my dog's name?"),
        "Your dog is called {v}.",
    ),
    "city": (
        city,
        ("I live in {v}.", "I come from {v}.", "My home is {v}.", "I am from {v}."),
        "I hope you like it in {v}.",
        ("Where do I live?", "Where do I come from?", "Which city is my home?", "Where is my home?"),
        "You live in {v}.",
    ),
    "colour": (
        lambda draw: draw.one(COLOURS),
        ("My favourite colour is {v}.", "I like {v} best of all colours.", "The colour I like most is {v}."),
        "I will remember that you like {v}.",
        ("What is my favourite colour?", "Which colour do I like?", "What colour do I like best?"),
        "Your favourite colour is {v}.",
    ),
    "food": (
        lambda draw: draw.one(FOODS),
        ("My favourite food is {v}.", "I love to eat {v}.", "The food I like most is {v}."),
        "I will remember that you like to eat {v}.",
        ("What is my favourite food?", "Which food do I like?", "What do I love to eat?"),
        "Your favourite food is {v}.",
    ),
}  # fmt: skip


def make(draw: Draw) -> Item:
    """Return a conversation with a last question about an earlier turn."""
    return draw.own(lambda: _conversation(draw), lambda item: item.keys[0])


def _conversation(draw: Draw) -> Item:
    subjects = draw.some(sorted(_SUBJECTS), draw.one((1, 1, 2)))
    if draw.chance(0.5) and "name" not in subjects:
        subjects[0] = "name"
    values = {}
    messages: list[dict[str, Any]] = []
    for subject in subjects:
        maker, statements, reply, _, _ = _SUBJECTS[subject]
        values[subject] = maker(draw)
        _say(
            messages,
            draw.one(statements).format(v=values[subject]),
            reply.format(v=values[subject]),
        )
    for _ in range(draw.one((0, 1, 1, 2))):
        aside = draw.one((small_talk, engine_facts, lists)).make(draw)
        _say(messages, aside.messages[0]["content"], aside.answer)
    subject = draw.one(subjects)
    _, _, _, questions, answer = _SUBJECTS[subject]
    messages.append({"role": "user", "content": draw.one(questions)})
    return Item(
        "recall",
        ("\n".join(message["content"] for message in messages),),
        messages,
        answer.format(v=values[subject]),
        thinking=draw.chance(0.7),
        variant=subject,
    )


def _say(messages: list[dict[str, Any]], question: str, answer: str) -> None:
    messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
