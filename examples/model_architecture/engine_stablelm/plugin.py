"""What stablelm brings: an entry, imported only when it is chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the entry."""
    return [Entry("StableLmForCausalLM", "engine_stablelm.model:spec", "StableLM 2 and StableLM 3B")]
