"""bitsandbytes checkpoints; read without the bitsandbytes library."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.bitsandbytes.method:BitsAndBytes"
    return [
        Entry(
            "bitsandbytes",
            target,
            "bitsandbytes: NF4 and FP4 with one or two sets of scales, and int8",
        )
    ]
