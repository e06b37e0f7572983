"""What an entry's module states for its suite: examples of what it makes of what, an oracle, a
bound.

They are next to the entry's target, in its module. A suite cannot know what an author means; it
can hold the entry to it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def stated(subject: Subject, name: str) -> Any:
    """Return what the target's module calls `name`; None where it states none."""
    target = subject.entry.target
    module = target.partition(":")[0] if isinstance(target, str) else _home(subject.target)
    return getattr(sys.modules.get(module), name, None)


def examples(subject: Subject, form: str, name: str = "EXAMPLES") -> Any:
    """Return the examples, a list.

    Raises `AssertionError` saying their form where a plugin's author has stated none.
    """
    found = stated(subject, name)
    assert found or subject.builtin, (
        f"{subject.entry.name}: define {name} next to it, such as {form}."
    )
    return found or []


def _home(target: Any) -> str:
    """Return the module that an object was made in: of plain data, that of the function in it."""
    return str(
        getattr(target, "__module__", "")
        if callable(target)
        else getattr(target, "read", target).__module__
    )
