"""What plugin modules are written with: `hookimpl` and `Entry`. Imports pluggy only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pluggy

PROJECT: Final = "engine"
API_VERSION: Final = 1
"""Version of the contracts in `core.contracts`; entries declare the one they
implement.
"""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One implementation of a kind; its target is imported only when it is
    chosen.
    """

    name: str
    target: str | Any
    """`package.module:attribute`, or the object itself (local plugins and
    tests).
    """
    summary: str
    """One line for `engine plugins explain` and the docs."""
    priority: int = 0
    """Priority among fitting entries for `auto`, highest first; ties are
    broken by name.
    """
    api: int = API_VERSION
    when: Mapping[str, Any] = field(default_factory=dict)
    """Required facts: a value, or a container or range of values, by fact
    name.

    For example `{"device": "cpu", "head_size": range(8, 257)}`.
    """
    requires: tuple[str, ...] = ()
    """Required distributions, as requirement strings."""
    needs: frozenset[str] = frozenset()
    """Capabilities that other chosen entries must give."""
    gives: frozenset[str] = frozenset()
    """Capabilities that it gives."""
    conflicts: frozenset[str] = frozenset()
    """Entry names ("kind:name") and capabilities that exclude it."""
    replaces: str = ""
    """Plugin of which it replaces the entry of this kind and name."""


def construct(target: Callable[..., T], *offered: Any) -> T:
    """Call a class or function with as many of the offered arguments as it
    takes by position.
    """
    kinds = [parameter.kind for parameter in inspect.signature(target).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return target(*offered)
    num_taken = sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
    return target(*offered[:num_taken])
