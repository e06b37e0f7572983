"""Entries of acme; their targets are imported when they are selected."""

from __future__ import annotations

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("AcmeForCausalLM", "engine_acme.model:spec", "Acme's decoder and tower")]


@hookimpl
def engine_input_processors() -> list[Entry]:
    """Return what turns its images into tensors. Its name is that of the architecture."""
    return [Entry("AcmeForCausalLM", "engine_acme.processor:AcmeProcessor", "Acme's images")]
