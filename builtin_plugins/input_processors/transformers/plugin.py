"""The input processor of every architecture that transformers has one for."""

from core.api import Entry, hookimpl


@hookimpl
def engine_input_processors() -> list[Entry]:
    """Return the entry."""
    target = "builtin_plugins.input_processors.transformers.processor:TransformersProcessor"
    return [Entry("transformers", target, "the processors of transformers, with Pillow")]
