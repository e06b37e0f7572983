"""Decides whether an entry fits what is known of model, machine and request.

Knows facts by name only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from importlib_metadata import PackageNotFoundError, version
from packaging.requirements import InvalidRequirement, Requirement

from core.plugin.entry import Entry


def why_not(entry: Entry, facts: Mapping[str, Any]) -> str | None:
    """Return why the entry cannot be used with these facts, or None when it can.

    An unknown fact does not fit.
    """
    for name, wanted in entry.when.items():
        if name not in facts:
            return f"needs {name} {shown(wanted)}, which is not known here"
        if not _matches(wanted, facts[name]):
            return f"needs {name} {shown(wanted)}, here it is {shown(facts[name], ', ')}"
    return missing_requirement(entry)


def missing_requirement(entry: Entry) -> str | None:
    """Return which distribution the entry needs and lacks, with the command that installs it."""
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


def shown(value: Any, joint: str = " or ") -> str:
    """Return a fact, or what an entry wants of it, as words."""
    if isinstance(value, range):
        return (
            f"{value.start} to {value[-1]}" + (f" by {value.step}" if value.step != 1 else "")
            if value
            else "never"
        )
    if _is_collection(value):
        return joint.join(sorted(map(str, value)))
    return str(value)


def _matches(wanted: Any, fact: Any) -> bool:
    """A single value equals or is among the fact's; a collection holds the fact or one of its
    values.
    """
    have = set(fact) if _is_collection(fact) else {fact}
    return any(value in wanted if _is_collection(wanted) else value == wanted for value in have)


def _is_collection(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))
