"""Checkpoints that bitsandbytes wrote; its library is not needed to read them."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method."""
    target = "builtin_plugins.quant_methods.bitsandbytes.method:BitsAndBytes"
    return [
        Entry(
            "bitsandbytes",
            target,
            "bitsandbytes: NF4 and FP4 with one or two sets of scales, and int8",
        )
    ]
