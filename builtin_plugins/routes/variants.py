"""Variants of the served model, which features list next to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from builtin_plugins.routes.calls import Call

if TYPE_CHECKING:
    from core.api import Registry


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the served model under a name of its own, such as a LoRA
    adapter.
    """

    name: str
    root: str
    """Path or id it was loaded from."""
    parent: str | None = None
    """Model it derives from; None: the served model."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of `AsyncLLM.generate` that select it."""


class VariantSource(Protocol):
    """Lists, finds and loads variants of the model."""

    def variants(self) -> Sequence[Variant]:
        """Return the variants to list next to the model."""

    async def find(self, name: str) -> Variant | None:
        """Return the variant of this name; may be slow.

        Raises `InvalidRequest` with a reason.
        """

    async def load(
        self, call: Call, name: str, path: str, parent: str | None, *, again: bool
    ) -> None:
        """Load a variant at run time; with `again`, replace the one of the
        same name.

        Raises `InvalidRequest` and changes nothing when it cannot be loaded.
        """

    async def unload(self, call: Call, name: str) -> bool:
        """Stop serving it to new requests; return False for an
        unknown name.
        """


def variant_sources(registry: Registry) -> list[VariantSource]:
    """Return this process's variant sources; features add theirs when the
    frontend starts.
    """
    made: list[VariantSource] = registry.shared("variants", list)
    return made
