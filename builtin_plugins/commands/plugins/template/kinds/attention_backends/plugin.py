"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "acme",
            "engine_acme.attention:Acme",
            "one sequence at a time, in plain torch",
            priority=-10,
        )
    ]
