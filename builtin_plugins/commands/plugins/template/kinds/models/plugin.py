"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the entry."""
    return [Entry("AcmeForCausalLM", "engine_acme.model:spec", "Acme's decoder")]
