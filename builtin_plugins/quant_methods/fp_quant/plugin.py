"""FP-Quant checkpoints."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.fp_quant.method:FpQuant"
    return [Entry("fp_quant", target, "FP-Quant: MXFP4 and NVFP4 with rotated inputs")]
