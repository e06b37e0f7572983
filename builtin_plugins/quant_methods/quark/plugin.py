"""Checkpoints of AMD Quark."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.quark.method:Quark"
    return [
        Entry(
            "quark",
            target,
            "AMD Quark: fp8 and int8 per tensor and row, MXFP4, MXFP6, mixed by layer",
        )
    ]
