"""A hundred JSON schemas of increasing difficulty, generated from seeds."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]
NUM_SCHEMAS = 100


def schemas() -> list[Schema]:
    """Return the schemas, the easiest first."""
    return [
        _schema(random.Random(index), 1 + index // 25, f"s{index}") for index in range(NUM_SCHEMAS)
    ]


def _schema(choose: random.Random, depth: int, name: str) -> Schema:
    if depth <= 1 and choose.random() < 0.6:
        return _scalar(choose)
    made = _object(choose, depth)
    if depth >= 3 and choose.random() < 0.5:  # a recursive type that can always end
        tree = {
            "type": "object",
            "properties": {
                "v": _scalar(choose),
                "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
        made["properties"][name] = {"$ref": "#/$defs/tree"}
        made["required"].append(name)
        made["$defs"] = {"tree": tree}
    return made


def _value(choose: random.Random, depth: int) -> Schema:
    if depth <= 0:
        return _scalar(choose)
    kinds = (_object, _array, _tuple, _one_of_two, lambda choose, depth: _scalar(choose))
    return choose.choice(kinds)(choose, depth)


def _scalar(choose: random.Random) -> Schema:
    low = choose.randint(-50, 50)
    return choose.choice(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": "integer", "minimum": low, "maximum": low + choose.randint(0, 500)},
            {"type": "string", "maxLength": choose.randint(1, 6)},
            {"type": "string", "minLength": 1, "maxLength": 4},
            {"enum": ["red", "grün", 'q"uote', 7, None][: choose.randint(2, 5)]},
            {"const": {"deep": [1, "x"]}},
            {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]{3}$"},
            {"type": "string", "format": choose.choice(["date", "uuid", "ipv4"])},
            {"type": ["string", "null"], "enum": ["a", None]},
        ]
    )


def _object(choose: random.Random, depth: int) -> Schema:
    names = choose.sample(
        ["name", "size", "über", "a b", "$id", "x_1", 'say"hi'], choose.randint(1, 3)
    )
    properties = {name: _value(choose, depth - 1) for name in names}
    required = names if choose.random() < 0.6 else names[:1]
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _array(choose: random.Random, depth: int) -> Schema:
    low = choose.randint(0, 1)
    return {
        "type": "array",
        "items": _value(choose, depth - 2),
        "minItems": low,
        "maxItems": low + 1,
    }


def _tuple(choose: random.Random, depth: int) -> Schema:
    items = [_value(choose, depth - 2) for _ in range(2)]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": 2, "maxItems": 2}


def _one_of_two(choose: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(choose, depth - 2), _scalar(choose)]}
