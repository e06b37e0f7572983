"""A runner: what follows a model's layers in every step."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_runners() -> list[Entry]:
    """Return the entry; `--runner acme` chooses it."""
    return [Entry("acme", "engine_acme.runner:Acme", "generates, and counts the tokens of prompts")]
