"""Closes the objects of a schema: to the library they may have any other properties, here those the
schema names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from core.api import schema_parts

_NAMING: Final = frozenset(["properties", "patternProperties"])
_ALTERNATIVES: Final = ("anyOf", "oneOf")


def closed(schema: Any) -> Any:
    """Return the schema with `additionalProperties` false wherever it names properties and does not
    state it.

    Raises `ValueError` where several schemas name properties of one object: each would exclude
    those of the others.
    """
    schema = deepcopy(schema)
    parts = [*schema_parts(schema)]
    naming = _Naming(schema)
    for part in parts:
        count, is_open = naming.count(part)
        if count > 1 and is_open:
            raise ValueError(
                "properties of one object in several schemas; state additionalProperties in each "
                "of them"
            )
    for part in parts:
        if _NAMING & {*part}:
            part.setdefault("additionalProperties", False)
    return schema


class _Naming:
    """Counts the schemas that name properties of one and the same object."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._known: dict[int, tuple[int, bool]] = {}

    def count(self, part: Any) -> tuple[int, bool]:
        """Return how many there are, 2 standing for more, and whether one of them says nothing of
        other properties.
        """
        if not isinstance(part, Mapping):
            return 0, False
        if id(part) not in self._known:
            self._known[id(part)] = 0, False  # what leads back to itself names nothing new
            names = bool(_NAMING & {*part})
            found = [
                (int(names), names and "additionalProperties" not in part),
                *self._others(part),
            ]
            self._known[id(part)] = (
                min(2, sum(count for count, _ in found)),
                any(is_open for _, is_open in found),
            )
        return self._known[id(part)]

    def _others(self, part: Mapping[str, Any]) -> Iterator[tuple[int, bool]]:
        yield from map(self.count, part.get("allOf", ()))
        for name in _ALTERNATIVES:
            found = [self.count(branch) for branch in part.get(name, ())]
            yield (
                max((count for count, _ in found), default=0),
                any(is_open for _, is_open in found),
            )
        yield self.count(self._target(part.get("$ref")))

    def _target(self, ref: Any) -> Any:
        if not (isinstance(ref, str) and ref.startswith("#")):
            return None
        found = self._whole
        for name in ref.removeprefix("#").split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return found
