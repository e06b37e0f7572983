"""What the distribution brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_grammar_backends() -> list[Entry]:
    """Return the entry."""
    target = "engine_outlines_core.backend:OutlinesCore"
    return [
        Entry(
            "outlines_core",
            target,
            "regexes, choices and plain JSON schemas, as automata whose masks are looked up",
            priority=10,
            requires=("outlines-core>=0.2.11",),
        )
    ]
