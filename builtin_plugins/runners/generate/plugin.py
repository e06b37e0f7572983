"""The runner of models that generate tokens."""

from core.api import Entry, hookimpl


@hookimpl
def engine_runners() -> list[Entry]:
    target = "builtin_plugins.runners.generate.runner:Generate"
    return [Entry("generate", target, "tokens that follow a prompt")]
