"""Pictures of 64 by 64 pixels, drawn from a random source, with what they show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from examples.demo_model.items import Draw

SIZE: Final = 64
Colour = tuple[int, int, int]
DIGITS: Final = "0123456789"
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLOURS: Final[dict[str, Colour]] = {
    "red": (215, 30, 30),
    "green": (30, 150, 50),
    "blue": (30, 70, 225),
    "yellow": (250, 220, 40),
    "orange": (250, 135, 20),
    "purple": (135, 40, 170),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
}
"""Colours by name; a drawing differs from them by up to `COLOUR_NOISE` in each channel."""
COLOUR_NOISE: Final = 10
CONTRAST: Final = 60
"""Least difference of luminance between a background and what is drawn on it."""
SHAPES: Final = ("circle", "square", "triangle", "star", "cross")
PLACES: Final[dict[str, tuple[float, float]]] = {
    "top left": (12, 12),
    "top": (32, 12),
    "top right": (52, 12),
    "left": (12, 32),
    "middle": (32, 32),
    "right": (52, 32),
    "bottom left": (12, 52),
    "bottom": (32, 52),
    "bottom right": (52, 52),
}
"""Centre of a shape at each place, in pixels."""
LARGEST_COUNT: Final = 6
CELL: Final = 16
"""Side of the squares in which counted shapes lie."""
FONTS: Final = Path("/usr/share/fonts/truetype/dejavu")
"""Fonts in addition to Pillow's own, where the machine has them."""


@dataclass(frozen=True, slots=True)
class Thing:
    """One object of a picture."""

    name: str
    """A digit, a letter, or one of `SHAPES`."""
    x: float
    """Centre, in pixels."""
    y: float
    size: float
    """Height in pixels."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a picture shows: equal things of one colour."""

    kind: str
    """digit, letter, shape or count"""
    things: tuple[Thing, ...]
    colour: str
    background: str
    place: str = ""
    """One of `PLACES`, if it shows one shape."""

    def key(self) -> str:
        """Return what is split into training and evaluation."""
        count = len(self.things)
        return f"{self.things[0].name} {count} {self.colour} {self.background} {self.place}"


class Picture(NamedTuple):
    """A scene and its drawing."""

    scene: Scene
    image: Image.Image


def make_picture(draw: Draw, kind: str) -> Picture:
    """Return a picture of a new scene of a kind."""
    scene = make_scene(draw, kind)
    return Picture(scene, paint(draw, scene))


def make_scene(draw: Draw, kind: str) -> Scene:
    """Return a new scene of a kind, on the source's side of the split."""
    return draw.own(lambda: _MAKERS[kind](draw), Scene.key)


def _glyph(draw: Draw, kind: str, names: Sequence[str]) -> Scene:
    colour, background = _colours(draw)
    size = draw.number(42, 56)
    x = 32 + draw.number(-4, 4)
    y = 32 + draw.number(-4, 4)
    return Scene(kind, (Thing(draw.one(names), x, y, size),), colour, background)


def _shape(draw: Draw) -> Scene:
    colour, background = _colours(draw)
    place = draw.one(tuple(PLACES))
    size = draw.number(16, 20)
    if place == "middle":
        size = draw.number(16, 44)
    x, y = (part + draw.number(-2, 2) for part in PLACES[place])
    return Scene("shape", (Thing(draw.one(SHAPES), x, y, size),), colour, background, place)


def _several(draw: Draw) -> Scene:
    """Two to six equal shapes that do not touch."""
    colour, background = _colours(draw)
    name = draw.one(SHAPES)
    things = []
    for cell in draw.some(range((SIZE // CELL) ** 2), draw.number(2, LARGEST_COUNT)):
        row, column = divmod(cell, SIZE // CELL)
        x = CELL * (column + 0.5) + draw.number(-1, 1)
        y = CELL * (row + 0.5) + draw.number(-1, 1)
        things.append(Thing(name, x, y, draw.number(11, 13)))
    return Scene("count", tuple(things), colour, background)


_MAKERS: Final[dict[str, Callable[[Draw], Scene]]] = {
    "digit": lambda draw: _glyph(draw, "digit", DIGITS),
    "letter": lambda draw: _glyph(draw, "letter", LETTERS),
    "shape": _shape,
    "count": _several,
}
KINDS: Final = tuple(_MAKERS)


def _colours(draw: Draw) -> tuple[str, str]:
    """Return a colour and a background that it stands out from; the background is often white."""
    background = draw.one(("white", "white", "white", "black", *COLOURS))
    light = _luminance(background)
    return draw.one([c for c in COLOURS if abs(_luminance(c) - light) >= CONTRAST]), background


def _luminance(colour: str) -> float:
    red, green, blue = COLOURS[colour]
    return 0.299 * red + 0.587 * green + 0.114 * blue


def paint(draw: Draw, scene: Scene) -> Image.Image:
    """Return the drawing of a scene; colours vary a little, edges are smooth or not."""
    scale = draw.one((1, 2, 4))
    image = Image.new("RGB", (SIZE * scale, SIZE * scale), _shade(draw, scene.background))
    canvas = ImageDraw.Draw(image)
    colour = _shade(draw, scene.colour)
    font = draw.one(fonts())
    for thing in scene.things:
        _paint_thing(canvas, thing, colour, scale, font)
    return image.resize((SIZE, SIZE), Image.Resampling.BOX) if scale > 1 else image


def _shade(draw: Draw, name: str) -> Colour:
    red, green, blue = (
        min(255, max(0, part + draw.number(-COLOUR_NOISE, COLOUR_NOISE))) for part in COLOURS[name]
    )
    return red, green, blue


def _paint_thing(
    canvas: ImageDraw.ImageDraw, thing: Thing, colour: Colour, scale: int, font: str
) -> None:
    x, y, size = (part * scale for part in (thing.x, thing.y, thing.size))
    half = size / 2
    box = (x - half, y - half, x + half, y + half)
    if thing.name == "circle":
        canvas.ellipse(box, fill=colour)
    elif thing.name == "square":
        canvas.rectangle(box, fill=colour)
    elif thing.name == "triangle":
        canvas.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], fill=colour)
    elif thing.name == "star":
        canvas.polygon(_star(x, y, half * 1.15), fill=colour)
    elif thing.name == "cross":
        arm = size / 6
        canvas.rectangle((x - half, y - arm, x + half, y + arm), fill=colour)
        canvas.rectangle((x - arm, y - half, x + arm, y + half), fill=colour)
    else:
        canvas.text((x, y), thing.name, fill=colour, font=_font(font, round(size)), anchor="mm")


def _star(x: float, y: float, radius: float) -> list[tuple[float, float]]:
    angles = [math.pi * (i / 5 - 0.5) for i in range(10)]
    radii = [radius if i % 2 == 0 else radius * 0.42 for i in range(10)]
    return [(x + r * math.cos(a), y + r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


@cache
def fonts() -> tuple[str, ...]:
    """Return Pillow's own font as an empty name, twice, and the files of others."""
    names = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
    return ("", "", *(str(FONTS / name) for name in names if (FONTS / name).exists()))


@cache
def _font(name: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.truetype(name, size) if name else ImageFont.load_default(size)
