"""Reads typed fields of a quantization config. Independent of formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api import ModelError


def read_object(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object field, empty if absent. Raises `ModelError` for another type."""
    return _object(name, facts.get(name))


def read_objects(facts: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """Return an object of objects by name; null is empty. Raises `ModelError` for another type."""
    return {key: _object(f"{name}.{key}", own) for key, own in read_object(facts, name).items()}


def read_names(facts: Mapping[str, Any], *fields: str) -> tuple[str, ...]:
    """Return a list of names from the first of these fields that is set.

    Raises `ModelError` for another type.
    """
    field = next((field for field in fields if facts.get(field)), None)
    if field is None:
        return ()
    found = facts[field]
    if not isinstance(found, (list, tuple)) or not all(isinstance(name, str) for name in found):
        raise _fault(field, found, "a list of names")
    return tuple(found)


def _object(name: str, found: Any) -> Mapping[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise _fault(name, found, "an object")
    return found


def _fault(name: str, found: Any, expected: str) -> ModelError:
    return ModelError(
        f"quantization_config: {name:.80}: got {found!r:.80}; expected {expected}. Restore the "
        "original config."
    )
