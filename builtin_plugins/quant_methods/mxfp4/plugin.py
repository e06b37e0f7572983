"""MXFP4 experts, as in gpt-oss checkpoints."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.mxfp4.experts:Mxfp4"
    return [Entry("mxfp4", target, "MXFP4 experts with one scale per block")]
