"""What features add to the front of an engine: variants of the model under names of their own, and
methods of `LLM`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from core.contracts.registry import Registry


Call = Callable[[str, bytes], Awaitable[list[bytes]]]


@dataclass(frozen=True, slots=True)
class Variant:
    """The model, changed."""

    name: str
    root: str
    """Where it is from."""
    parent: str | None = None
    """What it is a variant of; None: the model that is served."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Of `AsyncLLM.generate`, by which a request asks for it."""


class VariantSource(Protocol):
    """Knows some variants."""

    def variants(self) -> Sequence[Variant]:
        """Return those that are listed beside the model."""

    async def find(self, name: str) -> Variant | None:
        """Return the one of this name, which may take its time to be found.

        Raises `InvalidRequest` that says why not.
        """

    async def load(
        self, call: Call, name: str, path: str, parent: str | None, *, again: bool
    ) -> None:
        """Serve what lies at a path under a name, at run time; `again`: in place of what has the
        name by now.

        `call` makes calls of the engine (`AsyncLLM.call`). Raises `InvalidRequest`, and nothing has
        changed then.
        """

    async def unload(self, call: Call, name: str) -> bool:
        """Serve it no more to new requests; False for an unknown name."""


def variants_of(registry: Registry) -> list[VariantSource]:
    """Return the sources of the process whose plugins these are; features add to it when a front is
    made.
    """
    made: list[VariantSource] = registry.shared("variants", list)
    return made


def methods_of(registry: Registry) -> dict[str, Callable[..., Any]]:
    """Return the methods of `LLM` that features add, by name; each is called with the engine before
    its arguments.
    """
    made: dict[str, Callable[..., Any]] = registry.shared("methods of LLM", dict)
    return made
