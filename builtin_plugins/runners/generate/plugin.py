"""The plugin with the runner of generating models."""

from core.api import Entry, hookimpl


@hookimpl
def engine_runners() -> list[Entry]:
    target = "builtin_plugins.runners.generate.runner:GenerateRunner"
    return [Entry("generate", target, "generates tokens after a prompt")]
