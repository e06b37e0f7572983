"""Questions about a picture, with their answers."""

from __future__ import annotations

from typing import Final, NamedTuple

from examples.demo_model.items import Draw
from examples.demo_model.vision.scenes import Scene

WHICH: Final = {
    "digit": (
        "What digit is this?",
        "Which digit is in the picture?",
        "What number is shown?",
        "Read the digit.",
    ),
    "letter": (
        "What letter is this?",
        "Which letter is in the picture?",
        "What letter is shown?",
        "Read the letter.",
    ),
    "shape": (
        "What shape is this?",
        "Which shape is in the picture?",
        "Name the shape.",
    ),
    "count": (
        "What shapes are these?",
        "Name the shapes.",
    ),
}
COLOUR: Final = (
    "What colour is the {name}?",
    "What color is the {name}?",
    "What colour is it?",
)
COLOURS: Final = (
    "What colour are the {name}s?",
    "What color are the {name}s?",
    "What colour are they?",
)
COUNT: Final = (
    "How many {name}s are there?",
    "How many {name}s are in the picture?",
    "Count the {name}s.",
)
PLACE: Final = (
    "Where is the {name}?",
    "Where is the {name} in the picture?",
)
DESCRIBE: Final = (
    "What is in the picture?",
    "What do you see?",
    "Describe the picture.",
)
PLURALS: Final = {"cross": "crosse"}
"""Names that get more than an s in the plural."""


class Question(NamedTuple):
    """A question and the one right answer."""

    skill: str
    """digits, letters, shapes, colours, counting, where or describing"""
    text: str
    answer: str


SKILLS: Final = {
    "digit": ("digits", "digits", "colours", "describing"),
    "letter": ("letters", "letters", "colours", "describing"),
    "shape": ("shapes", "where", "where", "colours", "counting", "describing"),
    "count": ("counting", "counting", "shapes", "colours", "describing"),
}
"""Skills of the questions about each kind of scene, each as often as it is listed."""


def ask(draw: Draw, scene: Scene) -> Question:
    """Return a question that the scene answers."""
    skill = draw.one(SKILLS[scene.kind])
    thing = scene.things[0].name
    name = scene.kind if scene.kind in ("digit", "letter") else thing
    several = len(scene.things) > 1
    plural = PLURALS.get(name, name)
    if skill == "colours":
        text = draw.one(COLOURS if several else COLOUR)
        return Question("colours", text.format(name=plural if several else name), scene.colour)
    if skill == "counting":
        return Question(skill, draw.one(COUNT).format(name=plural), str(len(scene.things)))
    if skill == "where":
        return Question(skill, draw.one(PLACE).format(name=name), scene.place)
    if skill == "describing":
        return Question(skill, draw.one(DESCRIBE), describe(scene))
    answer = f"{PLURALS.get(thing, thing)}s" if several else thing
    return Question(skill, draw.one(WHICH[scene.kind]), answer)


def describe(scene: Scene) -> str:
    """Return the objects of a scene with their colour."""
    name = scene.things[0].name
    count = len(scene.things)
    if count > 1:
        return f"{count} {scene.colour} {PLURALS.get(name, name)}s"
    noun = f"{scene.kind} {name}" if scene.kind in ("digit", "letter") else name
    return f"{'an' if scene.colour[0] in 'aeiou' else 'a'} {scene.colour} {noun}"
