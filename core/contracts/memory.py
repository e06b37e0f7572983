"""Who owns the memory of a process: what grows is named, and says how far it may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.contracts.registry import Registry

Bytes = Callable[[], int]
"""Asked from any thread, whenever somebody looks; must be quick, and wait for nobody."""


@dataclass(slots=True)
class Memory:
    """The owners in one process, by name.

    Plugins add what they keep: `memory_of(registry).own(...)`.
    """

    owners: dict[str, tuple[Bytes, Bytes]] = field(default_factory=dict)

    def own(self, owner: str, num_bytes: Bytes, most: Bytes) -> None:
        """Add an owner, with what it has and the most it may have; one of the same name is
        replaced.

        Names are a fixed set in snake case (`grammar_cache`): they become label values of a metric.
        """
        self.owners[owner] = num_bytes, most

    def bytes_now(self) -> dict[str, tuple[int, int]]:
        """Return what each owner has, and the most it may have."""
        return {
            owner: (num_bytes(), most()) for owner, (num_bytes, most) in list(self.owners.items())
        }


def memory_of(registry: Registry) -> Memory:
    """Return the owners of the process whose plugins these are."""
    made: Memory = registry.shared("memory", Memory)
    return made
