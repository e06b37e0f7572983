"""Checkpoints of NVIDIA Model Optimizer."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.modelopt.method:ModelOpt"
    summary = "NVIDIA Model Optimizer: FP8 per tensor, row and block, MXFP8, NVFP4"
    return [Entry("modelopt", target, summary, gives=frozenset({"modelopt_fp4", "petit_nvfp4"}))]
