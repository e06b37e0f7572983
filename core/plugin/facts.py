"""Whether an entry fits the facts that its `when` names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from importlib_metadata import PackageNotFoundError, version
from packaging.requirements import InvalidRequirement, Requirement

from core.plugin.entry import Entry


def why_not(entry: Entry, facts: Mapping[str, Any]) -> str | None:
    """Return why the entry does not fit these facts, or None if it fits.

    An unknown fact does not fit.
    """
    for name, required in entry.when.items():
        needs = f"needs {name} {format_fact(required)}"
        if name not in facts:
            return f"{needs}, which is not known here"
        if not _matches(required, facts[name]):
            return f"{needs}, here it is {format_fact(facts[name], ', ')}"
    return missing_requirement(entry)


def missing_requirement(entry: Entry) -> str | None:
    """Return the distribution that an entry lacks, with the command to
    install it, or None.
    """
    for written in entry.requires:
        try:
            requirement = Requirement(written)
            found = version(requirement.name)
        except InvalidRequirement:
            return f"requires {written!r}, which is no requirement that can be read"
        except PackageNotFoundError:
            return f"needs {written}, which is not installed (pip install '{written}')"
        if not requirement.specifier.contains(found, prereleases=True):
            return f"needs {written}, but {found} is installed (pip install '{written}')"
    return None


def format_fact(value: Any, separator: str = " or ") -> str:
    """Return a fact, or an entry's requirement, as text."""
    if isinstance(value, range):
        if not value:
            return "never"
        step = f" by {value.step}" if value.step != 1 else ""
        return f"{value.start} to {value[-1]}{step}"
    if _is_collection(value):
        return separator.join(sorted(map(str, value)))
    return str(value)


def _matches(required: Any, fact: Any) -> bool:
    """Return whether one of the fact's values equals `required` or
    is in it.
    """
    values = set(fact) if _is_collection(fact) else {fact}
    if _is_collection(required):
        return any(value in required for value in values)
    return any(value == required for value in values)


def _is_collection(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))
