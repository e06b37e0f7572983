"""Entries of acme: a speculator, which drafts tokens for verification in one step."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_speculators() -> list[Entry]:
    """Return the entry. Select it with `--speculative-config '{"method": "acme"}'`."""
    return [Entry("acme", "engine_acme.speculator:Acme", "repeats the last token")]
