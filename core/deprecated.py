"""The list of what plugins should stop using. An item stays for one version of the contracts, then it is removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Deprecation:
    """One thing that goes away."""

    api: int
    """`API_VERSION` that replaced it; entries written for an earlier one may still use it."""
    what: str
    instead: str


DEPRECATIONS: Final[tuple[Deprecation, ...]] = ()


def advice(api: int) -> str:
    """Return what an entry written for version `api` should change."""
    found = [f"{item.what}: {item.instead}" for item in DEPRECATIONS if item.api > api]
    return "; ".join(found) or "nothing it uses has changed"
