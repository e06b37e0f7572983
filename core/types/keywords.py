"""What users pass by name: names that somebody reads, names known but not served, and values that
ask for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import InvalidRequest, did_you_mean


@dataclass(frozen=True, slots=True)
class Unserved:
    """A name that means nothing here."""

    missing: str
    """Why, as a sentence without its subject: "needs adapters, and no plugin brings them"."""
    neutral: tuple[Any, ...] = ()
    """Values besides None and empty ones that ask for nothing."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names under which users may pass something."""

    read: frozenset[str] = frozenset()
    unserved: Mapping[str, Unserved] = field(default_factory=dict)

    @classmethod
    def of(cls, extensions: Iterable[Any], *kinds: str) -> Names:
        """Return those that extensions state: `kinds` are their attributes for names that they
        read.
        """
        listed = list(extensions)
        read = frozenset(
            name for extension in listed for kind in kinds for name in getattr(extension, kind, ())
        )
        unserved: dict[str, Unserved] = {}
        for extension in listed:
            unserved |= getattr(extension, "unserved", {})
        return cls(read, unserved)

    def sieve(
        self,
        given: Mapping[str, Any],
        own: Collection[str] = (),
        what: str = "no plugin reads it",
        hints: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return what somebody reads of that which is given.

        `own` are the names that the caller reads itself, `hints` others that a misspelt one may
        have meant. None and values that ask for nothing are left out. Raises `InvalidRequest` that
        names any other.
        """
        found = {}
        for name, value in given.items():
            if name in own or value is None:
                continue
            if name in self.read:
                found[name] = value
                continue
            known = self.unserved.get(name, Unserved(""))
            if _is_empty(value) or any(
                type(value) is type(each) and value == each for each in known.neutral
            ):
                continue
            if known.missing:
                raise InvalidRequest(name, f"{known.missing}.")
            raise InvalidRequest(
                str(name),
                f"{what}{did_you_mean(str(name), {*own, *hints, *self.read} - {name}) or '.'}",
            )
        return found


def _is_empty(value: Any) -> bool:
    return hasattr(value, "__len__") and len(value) == 0
