"""The entry of token_sets, imported when chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_logits_processors() -> list[Entry]:
    """Return the entry."""
    return [
        Entry(
            "token_sets",
            "engine_token_sets.processor:TokenSets",
            "forbids or favours sets of tokens (extra_args)",
        )
    ]
