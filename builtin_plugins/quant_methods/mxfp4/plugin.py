"""Experts in blocks of four-bit floats, as gpt-oss checkpoints have them."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method."""
    target = "builtin_plugins.quant_methods.mxfp4.experts:Mxfp4"
    return [Entry("mxfp4", target, "four-bit experts in blocks")]
