"""Slot values of requests: cities, people, amounts; their argument names and schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from examples.demo_model.items import Draw
from examples.demo_model.words import (
    ANIMALS,
    CITIES,
    FOODS,
    LIST_WORDS,
    NATURE,
    ROOMS,
    THINGS,
    WEEKDAYS,
    city,
    first_name,
    full_name,
    new_name,
    new_word,
)

Value = tuple[Any, str]
"""A value and its wording."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument of a request."""

    names: tuple[str, ...]
    kind: str
    make: Callable[[Draw], Value]
    """Returns a value and its wording."""
    choices: tuple[str, ...] = ()

    def schema(self, draw: Draw, name: str) -> dict[str, Any]:
        """Return its description in a tool's schema."""
        made: dict[str, Any] = {"type": self.kind}
        if self.choices:
            made["enum"] = draw.some(self.choices, draw.number(2, len(self.choices)))
        if self.kind == "array":
            made["items"] = {"type": "string"}
        if draw.chance(0.5):
            made["description"] = draw.one(
                ("The {n}", "the {n}.", "{n} as text", "Name of the {n}")
            ).format(n=name)
        return made

    def value(self, draw: Draw, schema: dict[str, Any]) -> Value:
        """Return a value that the schema allows, and its wording."""
        if "enum" in schema:
            choice = draw.one(schema["enum"])
            return choice, choice
        return self.make(draw)


def _text(make: Callable[[Draw], str]) -> Callable[[Draw], Value]:
    def made(draw: Draw) -> Value:
        text = make(draw)
        return text, text

    return made


def _whole(low: int, high: int) -> Callable[[Draw], Value]:
    def made(draw: Draw) -> Value:
        number = draw.number(low, high)
        return number, str(number)

    return made


def _phrase(draw: Draw) -> str:
    words = [
        draw.one(LIST_WORDS) if draw.chance(0.75) else new_name(draw)
        for _ in range(draw.number(1, 3))
    ]
    return " ".join(words)


def _subject(draw: Draw) -> str:
    return draw.one(
        ("the {a}", "{a}", "{a} and {b}", "the {a} of {n}", "{n}", "my {a}", "the new {a}")
    ).format(a=draw.one(THINGS), b=draw.one(LIST_WORDS), n=new_name(draw))


def _task(draw: Draw) -> str:
    return draw.one(("buy {f}", "call {n}", "feed the {a}", "write to {n}", "clean the {r}", "pay {n}", "water the {t}", "buy a {t}")).format(
        f=draw.one(FOODS), n=first_name(draw), a=draw.one(ANIMALS), r=draw.one(ROOMS), t=draw.one([*THINGS, *NATURE])
    )  # fmt: skip


def _amount(draw: Draw) -> Value:
    if draw.chance(0.7):
        number = draw.number(1, 999)
        return number, str(number)
    real = draw.number(11, 9999) / 10
    return real, str(real)


def _switch(draw: Draw) -> Value:
    on = draw.chance(0.5)
    return on, "on" if on else "off"


def _items(draw: Draw) -> Value:
    items = draw.some(FOODS, draw.number(1, 3))
    return items, items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _symbol(draw: Draw) -> str:
    return new_word(draw, 1, 2).upper()[:4] if draw.chance(0.6) else new_name(draw)


def _code(draw: Draw) -> str:
    return draw.one(
        ("USD", "EUR", "GBP", "JPY", "CHF", "CNY", "SEK", "INR", "CAD", "AUD", "euros", "dollars")
    )


def _town(draw: Draw) -> str:
    return draw.one(CITIES) if draw.chance(0.5) else city(draw)


def _path(draw: Draw) -> str:
    return f"{draw.one((new_word(draw), draw.one(THINGS)))}.{draw.one(('txt', 'md', 'csv', 'json', 'py'))}"


SLOTS: Final = {
    "city": Slot(("city", "location", "place", "town", "city_name"), "string", _text(_town)),
    "origin": Slot(("origin", "from", "start", "from_city"), "string", _text(_town)),
    "destination": Slot(("destination", "to", "end", "to_city"), "string", _text(_town)),
    "day": Slot(("day", "date", "weekday"), "string", _text(lambda draw: draw.one(WEEKDAYS))),
    "time": Slot(("time", "at", "when"), "string", _text(lambda draw: f"{draw.number(0, 23)}:{draw.number(0, 59):02}")),
    "unit": Slot(("unit", "units"), "string", _text(str), ("celsius", "fahrenheit", "kelvin")),
    "person": Slot(("name", "person", "to", "contact", "recipient"), "string", _text(lambda draw: draw.one((first_name(draw), full_name(draw))))),
    "subject": Slot(("subject", "topic", "title"), "string", _text(_subject)),
    "query": Slot(("query", "q", "text", "search_term"), "string", _text(_phrase)),
    "words": Slot(("text", "sentence", "words"), "string", _text(_phrase)),
    "title": Slot(("title", "summary"), "string", _text(lambda draw: f"The {new_name(draw)}")),
    "task": Slot(("task", "text", "what"), "string", _text(_task)),
    "symbol": Slot(("symbol", "ticker", "company"), "string", _text(_symbol)),
    "thing": Slot(("word", "topic", "about", "term"), "string", _text(lambda draw: draw.one(LIST_WORDS))),
    "path": Slot(("path", "file", "filename"), "string", _text(_path)),
    "food": Slot(("ingredient", "food", "dish"), "string", _text(lambda draw: draw.one(FOODS))),
    "item": Slot(("item", "product", "article"), "string", _text(lambda draw: draw.one([*THINGS, *FOODS]))),
    "room": Slot(("room", "place", "location"), "string", _text(lambda draw: draw.one(ROOMS))),
    "amount": Slot(("amount", "value", "sum"), "number", _amount),
    "from_code": Slot(("from", "from_currency", "source"), "string", _text(_code)),
    "to_code": Slot(("to", "to_currency", "target"), "string", _text(_code)),
    "nights": Slot(("nights", "duration"), "integer", _whole(1, 14)),
    "guests": Slot(("guests", "people"), "integer", _whole(1, 6)),
    "minutes": Slot(("minutes", "duration"), "integer", _whole(1, 90)),
    "degrees": Slot(("temperature", "degrees"), "integer", _whole(10, 30)),
    "level": Slot(("level", "volume", "percent"), "integer", _whole(0, 100)),
    "number": Slot(("id", "number"), "integer", _whole(1, 99999)),
    "quantity": Slot(("quantity", "count", "amount"), "integer", _whole(2, 40)),
    "on": Slot(("on", "state", "enabled"), "boolean", _switch),
    "items": Slot(("items", "things", "products"), "array", _items),
    "cuisine": Slot(("cuisine", "kind"), "string", _text(str), ("Italian", "Indian", "French", "Greek", "Thai")),
    "language": Slot(("language", "to", "target_language"), "string", _text(str), ("French", "German", "Spanish", "Italian", "Dutch")),
    "vehicle": Slot(("vehicle", "mode", "by"), "string", _text(str), ("car", "train", "bike", "bus")),
    "priority": Slot(("priority", "level", "severity"), "string", _text(str), ("low", "normal", "high", "urgent")),
}  # fmt: skip
"""Every slot of a request."""
