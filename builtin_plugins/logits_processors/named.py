"""`--logits-processors`: processor classes by import path, without a plugin."""

from __future__ import annotations

from core.api import Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Return the option; the engine loads these classes in addition to the plugins' processors."""
    text = (
        "Logits processor classes as module:Class (a class itself as a keyword of LLM), "
        "loaded for good at start-up."
    )
    return [Option("logits_processors", list[str] | None, None, text)]
