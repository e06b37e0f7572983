"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the entry."""
    return [
        Entry("acme", "engine_acme.processor:Acme", "bans the tokens a request lists in extra_args")
    ]
