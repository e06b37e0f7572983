"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_tool_parsers() -> list[Entry]:
    """Return the entry."""
    return [Entry("acme", "engine_acme.parser:FORMAT", "calls as <call>name{json}</call>")]
