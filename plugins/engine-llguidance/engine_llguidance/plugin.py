"""The entry of this distribution, imported when chosen."""

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
            "all constraints; unsupported JSON schemas are rejected",
            priority=20,
            requires=("llguidance>=1.3",),
        )
    ]
