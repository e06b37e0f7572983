"""A JSON object with the requested fields of a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.words import (
    COLOURS,
    FOODS,
    MONTHS,
    ROOMS,
    THINGS,
    WEEKDAYS,
    city,
    first_name,
    full_name,
    new_name,
    new_word,
)

JOBS: Final = [
    "actor",
    "baker",
    "carpenter",
    "cook",
    "doctor",
    "driver",
    "farmer",
    "gardener",
    "judge",
    "lawyer",
    "nurse",
    "painter",
    "pilot",
    "poet",
    "sailor",
    "singer",
    "teacher",
    "waiter",
    "writer",
]
_MAKERS: Final[dict[str, Callable[[Draw], Any]]] = {
    "name": full_name,
    "customer": full_name,
    "author": full_name,
    "sender": first_name,
    "age": lambda draw: draw.number(18, 99),
    "city": city,
    "origin": city,
    "destination": city,
    "job": lambda draw: draw.one(JOBS),
    "product": lambda draw: (
        f"{draw.one(COLOURS)} {draw.one(THINGS)}" if draw.chance(0.5) else draw.one(THINGS)
    ),
    "item": lambda draw: draw.one(FOODS),
    "quantity": lambda draw: draw.number(2, 99),
    "price": lambda draw: draw.number(1, 999) if draw.chance(0.5) else draw.number(101, 9999) / 100,
    "day": lambda draw: draw.one(WEEKDAYS),
    "date": lambda draw: f"{draw.number(1, 28)} {draw.one(MONTHS)}",
    "month": lambda draw: draw.one(MONTHS),
    "year": lambda draw: draw.number(1900, 2030),
    "room": lambda draw: draw.one(ROOMS),
    "hour": lambda draw: draw.number(1, 23),
    "title": lambda draw: f"The {draw.one(COLOURS).capitalize()} {new_name(draw)}",
    "pages": lambda draw: draw.number(40, 990),
    "email": lambda draw: f"{new_word(draw)}@{new_word(draw)}.com",
    "phone": lambda draw: str(draw.number(10000, 99999)),
    "colour": lambda draw: draw.one(COLOURS),
    "company": lambda draw: new_name(draw),
}
_SENTENCES: Final = (
    "{name} is {age} years old and lives in {city}.",
    "{name}, a {job} from {city}, is {age}.",
    "My name is {name}, I am {age} and I work as a {job}.",
    "{name} works as a {job} for {company} in {city}.",
    "{name} lives in {city} and is a {job}.",
    "{customer} ordered {quantity} of the {product} for {price} euros each.",
    "{customer} from {city} bought a {product} for {price} dollars.",
    "Please send {quantity} of the {product} to {customer} in {city}.",
    "We sold a {product} to {customer} on {day} for {price} euros.",
    "The flight from {origin} to {destination} leaves on {day} at {hour}.",
    "A train goes from {origin} to {destination} on {date} and costs {price} euros.",
    "I want to fly from {origin} to {destination} on {date}.",
    "The meeting with {name} is on {day} at {hour} in the {room}.",
    "On {date} we meet {name} in {city}.",
    "{author} wrote {title} in {year}; it has {pages} pages.",
    "The book {title} by {author} came out in {month} {year}.",
    "You can reach {name} at {email} or {phone}.",
    "Write to {name} of {company}: {email}.",
    "{sender} left a {colour} {item} in the {room} on {day}.",
    "{company} was founded in {city} in {year} by {name}.",
    "The {room} of {name} is {colour}.",
    "{name} was born in {city} in {year}.",
)
_PATTERNS: Final = (
    "Extract {fields} as JSON: {sentence}",
    "Extract {fields} as JSON.\n{sentence}",
    "{sentence}\nGive me {fields} as JSON.",
    "{sentence} Extract {fields} as a JSON object.",
    "Return a JSON object with {fields}: {sentence}",
    "Read this: {sentence}\nAnswer with JSON, keys {fields}.",
    "JSON with {fields}, please: {sentence}",
    "Turn this into JSON with the keys {fields}: {sentence}",
)


def make(draw: Draw) -> Item:
    """Return one sentence, the requested fields, and the object."""
    sentence, values = _new_fields(draw) if draw.chance(0.12) else _known_fields(draw)
    fields = [name for name in values if draw.chance(0.85)] or list(values)
    if draw.chance(0.25):
        fields = draw.some(fields, len(fields))
    answer = {name: values[name] for name in fields}
    question = draw.one(_PATTERNS).format(fields=listed(fields), sentence=sentence)
    return Item(
        "json",
        (sentence,),
        [{"role": "user", "content": question}],
        json.dumps(answer, ensure_ascii=False),
        thinking=draw.chance(0.7),
    )


def listed(names: list[str]) -> str:
    """Return names as they stand in a sentence: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _known_fields(draw: Draw) -> tuple[str, dict[str, Any]]:
    def make() -> tuple[str, dict[str, Any]]:
        pattern = draw.one(_SENTENCES)
        values = {name: _MAKERS[name](draw) for name in re.findall(r"{(\w+)}", pattern)}
        return pattern.format(**values), values

    return draw.own(make, lambda made: made[0])


def _new_fields(draw: Draw) -> tuple[str, dict[str, Any]]:
    """Return a sentence about invented properties, with names to copy."""

    def make() -> tuple[str, dict[str, Any]]:
        makers: tuple[Callable[[Draw], Any], ...] = (
            new_name,
            lambda d: d.number(0, 999),
            lambda d: d.one(COLOURS),
            lambda d: d.number(11, 999) / 10,
        )
        values = {new_word(draw): draw.one(makers)(draw) for _ in range(draw.number(2, 4))}
        parts = [f"{name} {draw.one(('is', '='))} {value}" for name, value in values.items()]
        return f"The {parts[0]}{''.join(', the ' + part for part in parts[1:])}.", values

    return draw.own(make, lambda made: made[0])
