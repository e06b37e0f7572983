"""Entries of acme: a runner, which processes the hidden states of every step."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_runners() -> list[Entry]:
    """Return the entry. Select it with `--runner acme`."""
    return [Entry("acme", "engine_acme.runner:Acme", "generates, and counts the tokens of prompts")]
