"""The entry of this distribution, imported when chosen."""

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
            "regexes, choices and plain JSON schemas, as automata with precomputed masks",
            priority=10,
            requires=("outlines-core>=0.2.11",),
        )
    ]
