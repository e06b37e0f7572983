"""What the distribution brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_grammar_backends() -> list[Entry]:
    """Return the entry."""
    target = "engine_llguidance.backend:LLGuidance"
    return [
        Entry(
            "llguidance",
            target,
            "all constraints but structural tags; JSON schemas exactly, or refused",
            priority=20,
            requires=("llguidance>=1.3",),
        )
    ]
