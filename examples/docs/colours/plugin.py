"""Declares a model that sees the mean colours of an image's quarters."""

from core.api import Entry, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("ColoursForCausalLM", "colours.model:spec", "Llama that sees four colours")]


@hookimpl
def engine_input_processors() -> list[Entry]:
    """Return what turns its images into tensors."""
    return [Entry("ColoursForCausalLM", "colours.model:ColourProcessor", "mean colours")]
