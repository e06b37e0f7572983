"""The entry of vaultgemma, imported when chosen."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the entry."""
    return [Entry("VaultGemmaForCausalLM", "engine_vaultgemma.model:spec", "VaultGemma")]
