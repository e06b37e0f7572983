"""Invented tools: names, schemas, requests in words, and their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from examples.demo_model.items import Draw
from examples.demo_model.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    FOODS,
    ROOMS,
    THINGS,
    WEEKDAYS,
    city,
    new_name,
    new_word,
)

VERBS: Final = {
    "get": ("get", "show me", "tell me", "look up", "what is", "find"),
    "find": ("find", "look for", "search for"),
    "set": ("set", "change", "put"),
    "send": ("send", "mail"),
    "book": ("book", "reserve"),
    "create": ("create", "make", "add"),
    "delete": ("delete", "remove"),
    "start": ("start", "turn on", "begin"),
    "stop": ("stop", "turn off", "end"),
    "check": ("check", "test"),
    "play": ("play",),
    "order": ("order", "buy"),
    "count": ("count",),
    "open": ("open",),
    "close": ("close", "shut"),
    "update": ("update",),
    "cancel": ("cancel", "call off"),
    "measure": ("measure",),
}
"""Verbs of tools, with the words people use for them."""
NOUNS: Final = [
    "alarm",
    "account",
    "address",
    "appointment",
    "battery",
    "bill",
    "calendar",
    "camera",
    "contract",
    "delivery",
    "device",
    "discount",
    "distance",
    "document",
    "door",
    "event",
    "fan",
    "file",
    "flight",
    "forecast",
    "game",
    "heating",
    "hotel",
    "humidity",
    "image",
    "invoice",
    "lamp",
    "light",
    "list",
    "map",
    "meeting",
    "message",
    "movie",
    "music",
    "name",
    "note",
    "order",
    "package",
    "parcel",
    "password",
    "payment",
    "photo",
    "player",
    "playlist",
    "position",
    "price",
    "printer",
    "profile",
    "project",
    "rate",
    "recipe",
    "record",
    "reminder",
    "report",
    "reservation",
    "robot",
    "room",
    "route",
    "schedule",
    "score",
    "sensor",
    "song",
    "speed",
    "station",
    "status",
    "stock",
    "table",
    "task",
    "taxi",
    "temperature",
    "ticket",
    "time",
    "timer",
    "tour",
    "traffic",
    "train",
    "translation",
    "trip",
    "user",
    "video",
    "volume",
    "weather",
    "wind",
]
_INVENTED_NAME: Final = 11
"""Style of names that are an invented word."""
_OWNERS: Final = ("car", "house", "city", "team", "office", "school", "phone", "shop")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool: its schema, a value, and its wording."""

    name: str
    schema: dict[str, Any]
    value: Any
    words: str
    required: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with one request for it."""

    name: str
    schema: dict[str, Any]
    verb: str
    noun: str
    parameters: tuple[Parameter, ...]


def new_tool(draw: Draw) -> Tool:
    """Return a tool with a name on the draw's side of the split."""
    # Drawn before the split, so that both sides have equal shares of the styles.
    style = draw.number(0, _INVENTED_NAME)
    verb, noun, name = draw.own(lambda: _named(draw, style), lambda named: named[2])
    parameters = _parameters(draw)
    required = [p.name for p in parameters if p.required]
    return Tool(
        name,
        schema(
            draw,
            name,
            _description(draw, verb, noun),
            {p.name: p.schema for p in parameters},
            required,
            is_telling=style != _INVENTED_NAME,
        ),
        verb,
        noun,
        parameters,
    )


def _named(draw: Draw, style: int) -> tuple[str, str, str]:
    """Return verb, noun and name of a tool."""
    verb = draw.one(tuple(VERBS))
    noun = new_word(draw) if draw.chance(0.1) else draw.one(NOUNS)
    if draw.chance(0.4):
        noun = f"{draw.one(_OWNERS)} {noun}"
    return verb, noun, _name(draw, style, verb, noun)


def again(draw: Draw, tool: Tool) -> tuple[Parameter, ...]:
    """Return the tool's parameters with new values."""
    return tuple(_valued(draw, p.name, p.schema, p.required) for p in tool.parameters)


def request(
    draw: Draw, tool: Tool, parameters: tuple[Parameter, ...]
) -> tuple[str, dict[str, Any]]:
    """Return a request and its arguments; optional ones may be missing."""
    given = [p for p in parameters if p.required or draw.chance(0.6)]
    verb = draw.one(VERBS[tool.verb])
    words = " ".join(
        [verb, "the", tool.noun, *(_and(p.words, i, draw) for i, p in enumerate(given))]
    )
    return words, {p.name: p.value for p in given}


def _and(words: str, index: int, draw: Draw) -> str:
    return f"and {words}" if index and draw.chance(0.3) else words


def _name(draw: Draw, style: int, verb: str, noun: str) -> str:
    parts = noun.split()
    if style <= 4:
        return "_".join([verb, *parts])
    if style <= 6:
        return verb + "".join(part.capitalize() for part in parts)
    if style <= 9:
        return "_".join([*parts, verb])
    return new_word(draw) if style == _INVENTED_NAME else f"{new_word(draw)}_{parts[-1]}"


def _description(draw: Draw, verb: str, noun: str) -> str:
    wording = verb.capitalize()
    return draw.one(
        (
            f"{wording} the {noun}.",
            f"{wording} a {noun}",
            f"{wording} the {noun} of a user.",
            f"Use it to {verb} the {noun}.",
        )
    )


def schema(
    draw: Draw,
    name: str,
    description: str,
    properties: dict[str, dict[str, Any]],
    required: list[str],
    is_telling: bool = True,
) -> dict[str, Any]:
    """Return a tool in a chat request's form; one with a telling name may lack a description."""
    body: dict[str, Any] = {"type": "object", "properties": properties}
    if required or draw.chance(0.5):
        body["required"] = required
    if draw.chance(0.1):
        body["additionalProperties"] = False
    function: dict[str, Any] = {"name": name, "description": description, "parameters": body}
    if draw.chance(0.05) and is_telling:
        del function["description"]
    if draw.chance(0.05):
        function["parameters"] = dict(reversed(body.items()))
    return {"type": "function", "function": function}


def _parameters(draw: Draw) -> tuple[Parameter, ...]:
    count = draw.one((0, 1, 1, 1, 2, 2, 2, 3, 3, 4))
    names: list[str] = []
    while len(names) < count:
        name = _new_parameter_name(draw) if draw.chance(0.15) else draw.one(tuple(_KNOWN))
        if name not in names:
            names.append(name)
    return tuple(
        _valued(draw, name, _parameter_schema(draw, name), draw.chance(0.75)) for name in names
    )


def _new_parameter_name(draw: Draw) -> str:
    return (
        new_word(draw)
        if draw.chance(0.7)
        else f"{new_word(draw, 1, 2)}_{draw.one(('id', 'name', 'level', 'mode', 'type'))}"
    )


def _parameter_schema(draw: Draw, name: str) -> dict[str, Any]:
    kind = (
        _KNOWN[name][0]
        if name in _KNOWN
        else draw.one(("string", "string", "integer", "number", "boolean", "enum"))
    )
    schema: dict[str, Any] = {"type": "string" if kind == "enum" else kind}
    if kind == "enum":
        schema["enum"] = draw.some(_choices(draw, name), draw.number(2, 4))
    if draw.chance(0.4):
        schema["description"] = f"The {name.replace('_', ' ')}" + draw.one(("", "."))
    return schema


def _choices(draw: Draw, name: str) -> list[str]:
    if name == "unit":
        return ["celsius", "fahrenheit", "kelvin", "metric", "imperial"]
    if name == "mode":
        return ["slow", "fast", "eco", "quiet", "normal", "auto"]
    return [new_word(draw) for _ in range(4)] if draw.chance(0.15) else [*COLOURS, *ANIMALS]


def _valued(draw: Draw, name: str, schema: dict[str, Any], required: bool) -> Parameter:
    value, spoken = _value(draw, name, schema)
    wording = name.replace("_", " ") if draw.chance(0.5) else name
    generic = draw.one(
        ("with {n} {v}", "with {n} {v}", "{n} {v}", "{n}: {v}", "{n} = {v}", "with the {n} {v}")
    )
    words = generic.format(n=wording, v=spoken)
    if name in _KNOWN and draw.chance(0.65):
        words = draw.one(_KNOWN[name][2]).format(v=spoken)
    return Parameter(name, schema, value, words, required)


def _value(draw: Draw, name: str, schema: dict[str, Any]) -> tuple[Any, str]:
    """Return a value and how it is wording."""
    kind = schema["type"]
    if "enum" in schema:
        value = draw.one(schema["enum"])
        return value, value
    if kind == "integer":
        number = draw.number(0, draw.one((9, 99, 999)))
        return number, str(number)
    if kind == "number":
        real = draw.number(1, 9999) / draw.one((10, 10, 100))
        return real, str(real)
    if kind == "boolean":
        flag = draw.chance(0.5)
        return flag, draw.one(("true", "yes", "on") if flag else ("false", "no", "off"))
    text = (
        _KNOWN[name][1](draw)
        if name in _KNOWN
        else draw.one((new_name(draw), draw.one(THINGS), city(draw)))
    )
    return text, text


def _time(draw: Draw) -> str:
    return f"{draw.number(0, 23)}:{draw.number(0, 59):02}"


_Known = tuple[str, Callable[[Draw], str], tuple[str, ...]]


def _none(draw: Draw) -> str:
    return ""


_KNOWN: Final[dict[str, _Known]] = {
    "city": ("string", city, ("in {v}", "for {v}", "of {v}")),
    "location": ("string", city, ("in {v}", "at {v}", "near {v}")),
    "name": ("string", new_name, ("for {v}", "called {v}", "named {v}", "of {v}")),
    "user": ("string", new_name, ("for {v}", "of {v}", "for user {v}")),
    "to": ("string", new_name, ("to {v}",)),
    "origin": ("string", city, ("from {v}", "starting in {v}")),
    "destination": ("string", city, ("to {v}", "going to {v}")),
    "day": ("string", lambda draw: draw.one(WEEKDAYS), ("on {v}", "for {v}")),
    "time": ("string", _time, ("at {v}", "for {v}")),
    "room": ("string", lambda draw: draw.one(ROOMS), ("in the {v}", "of the {v}")),
    "item": ("string", lambda draw: draw.one([*THINGS, *FOODS]), ("for the {v}", "of the {v}")),
    "title": ("string", lambda draw: f"The {new_name(draw)}", ("titled {v}", "called {v}")),
    "country": (
        "string",
        lambda draw: draw.one(CITIES),
        ("in the country {v}", "with country {v}"),
    ),
    "count": ("integer", _none, ("{v} times",)),
    "level": ("integer", _none, ("at level {v}", "to level {v}", "to {v}")),
    "minutes": ("integer", _none, ("for {v} minutes", "in {v} minutes")),
    "quantity": ("integer", _none, ("{v} of them", "with quantity {v}")),
    "id": ("integer", _none, ("with id {v}", "number {v}")),
    "amount": ("number", _none, ("for {v} euros", "with amount {v}")),
    "weight": ("number", _none, ("weighing {v} kilos", "with weight {v}")),
    "urgent": ("boolean", _none, ("with urgent {v}", "urgent: {v}")),
    "repeat": ("boolean", _none, ("with repeat {v}", "repeat {v}")),
    "unit": ("enum", _none, ("in {v}", "with unit {v}")),
    "mode": ("enum", _none, ("in {v} mode", "with mode {v}")),
    "colour": ("enum", _none, ("in {v}", "coloured {v}")),
}
