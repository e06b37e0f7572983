"""Checkpoints of NVIDIA's Model Optimizer."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method."""
    target = "builtin_plugins.quant_methods.modelopt.method:ModelOpt"
    summary = "NVIDIA Model Optimizer: FP8 of tensors, rows and blocks, MXFP8, NVFP4"
    return [Entry("modelopt", target, summary, gives=frozenset({"modelopt_fp4", "petit_nvfp4"}))]
