"""Facts that a checkpoint's config states of its weights, each of the kind that it must be.

Knows no format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import ModelError


def section(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object, empty where none is stated. Raises `ModelError` for anything else."""
    return _object(name, facts.get(name))


def sections(facts: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """Return an object's objects by name; those that are null are empty.

    Raises `ModelError` for anything else.
    """
    return {key: _object(f"{name}.{key}", own) for key, own in section(facts, name).items()}


def names(facts: Mapping[str, Any], *fields: str) -> tuple[str, ...]:
    """Return a list of names, of the first of these fields that has any.

    Raises `ModelError` for anything else.
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


def _fault(name: str, found: Any, wanted: str) -> ModelError:
    return ModelError(
        f"quantization_config: {name:.80} is {found!r:.80}; it is {wanted}. Restore the config "
        "from where the model came."
    )
