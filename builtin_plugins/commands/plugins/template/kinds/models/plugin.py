"""What acme brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the entry."""
    return [Entry("AcmeForCausalLM", "engine_acme.model:spec", "Acme's decoder")]
