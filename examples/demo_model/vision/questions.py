"""Questions about a picture, with their answers."""

from __future__ import annotations

from typing import Final, NamedTuple

from examples.demo_model.items import Draw
from examples.demo_model.vision.scenes import Scene

WHICH: Final = {
    "digit": (
        "What digit is this?",
        "Which digit is this?",
        "Which digit is in the picture?",
        "What number is this?",
        "What number is shown?",
        "Read the digit.",
        "Which digit do you see?",
        "What digit is shown in the image?",
    ),
    "letter": (
        "What letter is this?",
        "Which letter is this?",
        "Which letter is in the picture?",
        "What letter is shown?",
        "Read the letter.",
        "Which letter do you see?",
        "What letter is shown in the image?",
    ),
    "shape": (
        "What shape is this?",
        "Which shape is this?",
        "Which shape is in the picture?",
        "What shape do you see?",
        "Name the shape.",
        "What shape is shown in the image?",
    ),
    "count": (
        "What shapes are these?",
        "Which shapes are in the picture?",
        "What shapes do you see?",
        "Name the shapes.",
    ),
}
COLOUR: Final = (
    "What colour is the {name}?",
    "What color is the {name}?",
    "Which colour does the {name} have?",
    "Which color does the {name} have?",
    "Name the colour of the {name}.",
    "What colour is it?",
    "What color is it?",
)
COLOURS: Final = (
    "What colour are the {name}s?",
    "What color are the {name}s?",
    "Which colour do the {name}s have?",
    "Name the colour of the {name}s.",
    "What colour are they?",
    "What color are they?",
)
BACKGROUND: Final = (
    "What colour is the background?",
    "What color is the background?",
    "Which colour does the background have?",
    "Name the colour of the background.",
)
COUNT: Final = (
    "How many {name}s are there?",
    "How many {name}s are in the picture?",
    "How many {name}s do you see?",
    "How many {name}s are shown in the image?",
    "Count the {name}s.",
    "Count the {name}s in the picture.",
)
PLACE: Final = (
    "Where is the {name}?",
    "Where is the {name} in the picture?",
    "Where do you see the {name}?",
    "In which part of the picture is the {name}?",
)
DESCRIBE: Final = (
    "What is in the picture?",
    "What is in this picture?",
    "What do you see?",
    "Describe the picture.",
    "What is in this image?",
    "Describe the image.",
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
    "digit": ("digits", "digits", "colours", "background", "describing"),
    "letter": ("letters", "letters", "letters", "colours", "background", "describing"),
    "shape": ("shapes", "where", "where", "colours", "background", "counting", "describing"),
    "count": ("counting", "counting", "counting", "shapes", "colours", "background", "describing"),
}
"""What is asked about each kind of scene, as often as it stands here."""


def ask(draw: Draw, scene: Scene) -> Question:
    """Return a question that the scene answers."""
    skill = draw.one(SKILLS[scene.kind])
    thing = scene.things[0].name
    name = scene.kind if scene.kind in ("digit", "letter") else draw.one((thing, thing, "shape"))
    several = len(scene.things) > 1
    plural = PLURALS.get(name, name)
    if skill == "background":
        return Question("colours", draw.one(BACKGROUND), scene.background)
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
