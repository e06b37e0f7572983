"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_reasoning_parsers() -> list[Entry]:
    """Return the entry."""
    return [
        Entry("acme", "engine_acme.parser:FORMAT", "reasoning between <thought> and </thought>")
    ]
