"""`engine quantize`."""

from core.api import Entry, hookimpl


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    target = "builtin_plugins.commands.quantize.command:Quantize"
    return [
        Entry(
            "quantize",
            target,
            "write a checkpoint with fewer bits for each weight, as compressed-tensors",
        )
    ]
