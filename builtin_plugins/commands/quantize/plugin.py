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
            "write a quantized checkpoint in the compressed-tensors format",
        )
    ]
