"""The entry of this distribution, imported when chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_grammar_backends() -> list[Entry]:
    """Return the entry."""
    target = "engine_lm_format_enforcer.backend:FormatEnforcer"
    return [
        Entry(
            "lm_format_enforcer",
            target,
            "regexes (as Python writes them), choices and plain JSON schemas; written in Python",
            priority=0,
            requires=("lm-format-enforcer>=0.11",),
        )
    ]
