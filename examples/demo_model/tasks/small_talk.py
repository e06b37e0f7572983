"""Greetings, thanks, and an honest answer to questions about the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    FOODS,
    NATURE,
    THINGS,
    city,
    full_name,
    new_name,
)

HELLO: Final = (
    "Hello! I am a tiny demo model. I can add, call tools, write JSON and explain this engine."
)
KNOW_LITTLE: Final = (
    "I am a tiny model and know little about the world. Ask me for a sum, a list, some JSON, a "
    "tool call or something "
    "about this engine."
)
IDENTITY: Final = "I am a tiny demo model with about five million parameters, trained on made-up examples to show what this engine does."
ABILITIES: Final = (
    "I can add and subtract to three digits, call tools, extract JSON, sort and reverse short "
    "lists, and answer "
    "questions about this engine."
)
_REPLIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "hello": (
        HELLO,
        (
            "Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there", "Hello there!", "Good morning", "Good evening!", "hello",
            "hi", "Hello, who is there?", "Greetings", "Hey there!", "Good day", "Hello model", "hey", "Hello, how do you do?",
        ),
    ),
    "thanks": ("You are welcome!", ("Thanks", "Thank you", "Thank you!", "Thanks a lot", "thanks!", "Thank you very much.")),
    "bye": ("Goodbye!", ("Bye", "Goodbye", "See you", "Bye bye", "Good night", "See you later!", "goodbye")),
    "how": ("I am fine, thank you.", ("How are you?", "How are you today?", "how are you", "How do you feel?", "Are you well?")),
    "who": (
        IDENTITY,
        (
            "Who are you?", "What are you?", "who are you", "Tell me about yourself.", "What is your name?", "What model are you?",
            "Introduce yourself.", "Are you a language model?", "Which model is this?", "How big are you?",
        ),
    ),
    "abilities": (
        ABILITIES,
        (
            "What can you do?", "Help", "help", "How can you help me?", "What are you good at?", "What can I ask you?",
            "What should I ask?", "what can you do", "What do you know?", "Give me an example of what you can do.",
        ),
    ),
}  # fmt: skip
_WORLD: Final = (
    "What is the capital of {place}?", "Where is {place}?", "Who is {person}?", "Who was {person}?", "Who wrote {title}?",
    "Write a poem about a {thing}.", "Tell me a joke about a {animal}.", "Tell me a joke.", "Write a story about a {animal}.",
    "Is it nice in {place}?", "How tall is {person}?", "When was {person} born?",
    "Why is the {nature} {colour}?", "What does a {animal} eat?", "Who is the president of "
                                                                  "{place}?",
    "Explain quantum physics.",
    "What is a {thing}?", "What is the meaning of life?", "Write a Python function.", "Who won the match?",
    "Recommend a book about {nature}.", "How old is {person}?", "What happened in {year}?", "Is {food} healthy?",
    "What is the largest {animal}?", "Can you draw a {thing}?", "What is the tallest {nature} in "
                                                                "{place}?",
    "Summarise the book {title}.", "Who invented the {thing}?", "What language do they speak in "
                                                                "{place}?",
    "Name a famous {thing} from {place}.", "Do you like {food}?", "How many {animal}s are there in "
                                                                  "{place}?",
)  # fmt: skip
_TOOLS_WORK: Final = (
    "What is the population of {place}?", "How far is it from {place} to {place2}?", "What time is it?", "Translate {thing} into French.",
    "What is the news today?", "How do I cook {food}?", "What is the weather in {place}?", "How is the weather in {place}?",
    "What time is it in {place}?", "How warm is it in {place}?", "Will it rain in {place}?", "Do I have mail from {person}?",
    "Wake me at seven.", "Turn on the light.", "Search the web for {nature}.", "Send a message to {person}.",
)  # fmt: skip
"""Questions that need a tool."""
_COUNTRIES: Final = [
    "Argentina",
    "Australia",
    "Austria",
    "Belgium",
    "Brazil",
    "Canada",
    "Chile",
    "China",
    "Denmark",
    "Egypt",
    "Finland",
    "France",
    "Germany",
    "Greece",
    "India",
    "Ireland",
    "Italy",
    "Japan",
    "Kenya",
    "Mexico",
    "Norway",
    "Poland",
    "Portugal",
    "Spain",
    "Sweden",
    "Turkey",
]


def make(draw: Draw) -> Item:
    """Return one exchange of small talk, or a question this model cannot answer."""
    if draw.chance(0.5):
        question = world_question(draw, _TOOLS_WORK if draw.chance(0.3) else _WORLD)
        answer = KNOW_LITTLE
        variant = "world"
    else:
        variant = draw.one(sorted(_REPLIES))
        answer, questions = _REPLIES[variant]
        question = draw.one(questions)
    return Item(
        "small talk",
        (),
        [{"role": "user", "content": question}],
        answer,
        thinking=draw.chance(0.7),
        variant=variant,
    )


def world_question(draw: Draw, questions: Sequence[str] = _WORLD) -> str:
    """Return a question about the world, by default one that no tool answers."""

    def place() -> str:
        if draw.chance(0.5):
            return draw.one(_COUNTRIES)
        return draw.one(CITIES) if draw.chance(0.5) else city(draw)

    return draw.one(questions).format(
        place=place(),
        place2=place(),
        person=full_name(draw),
        title=f"The {new_name(draw)}",
        thing=draw.one(THINGS),
        animal=draw.one(ANIMALS),
        food=draw.one(FOODS),
        nature=draw.one(NATURE),
        colour=draw.one(COLOURS),
        year=draw.number(1500, 2020),
    )
