"""`--logits-processors`: classes by their path, without a plugin around them."""

from __future__ import annotations

from core.api import Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Give the option; the engine loads what it names beside the plugins' processors."""
    text = "Logits processor classes as module:Class (a class itself as a keyword of LLM), loaded for good at start-up."
    return [Option("logits_processors", list[str] | None, None, text)]
