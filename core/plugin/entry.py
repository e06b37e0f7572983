"""What a plugin module is written with: `hookimpl` and `Entry`. Plain data; imports pluggy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pluggy

PROJECT: Final = "engine"
API_VERSION: Final = 1
"""Version of every contract in `core.contracts`; entries state the one they were written for."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class Entry:
    """One implementation of a kind, named by a string and imported only when chosen."""

    name: str
    target: str | Any
    """`package.module:attribute`; an object is taken as it is (local plugins and tests)."""
    summary: str
    """One line for `engine plugins explain` and the docs."""
    priority: int = 0
    """Among entries that fit, `auto` takes the highest; ties go by name."""
    api: int = API_VERSION
    when: Mapping[str, Any] = field(default_factory=dict)
    """Fact name to the value, container or range it must be (in): `{"device": "cpu", "head_size":
    range(8, 257)}`.
    """
    requires: tuple[str, ...] = ()
    """Distributions that must be installed, as requirement strings."""
    needs: frozenset[str] = frozenset()
    """Capabilities that other chosen entries must give."""
    gives: frozenset[str] = frozenset()
    """Capabilities it brings."""
    conflicts: frozenset[str] = frozenset()
    """Entry names ("kind:name") and capabilities it cannot be combined with."""
