"""Who is told of the blocks that tiers behind the cache have got and lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contracts.kv_connectors import BlockKey
    from core.contracts.registry import Registry

Watcher = Callable[[str, "BlockKey", bool], None]
"""Takes a tier's medium, such as "CPU", a block, and whether the tier has it from now on; called in
the scheduler's thread,
once for each change, a moment's work."""


def watchers_of(registry: Registry) -> list[Watcher]:
    """Return those in the process whose plugins these are; features add to it, tiers tell all that
    are in it.
    """
    made: list[Watcher] = registry.shared("kv_watchers", list)
    return made
