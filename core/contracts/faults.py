"""What plugins have raised in one process, by plugin; shown to operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contracts.registry import Registry


def faults_of(registry: Registry) -> Mapping[str, tuple[int, str]]:
    """Return for each plugin that has raised something how often it has, and the last exception in
    words.

    A plugin that raises what its contract says has done nothing wrong.
    """
    found: Mapping[str, tuple[int, str]] = registry.shared("faults", dict)
    return dict(found)
