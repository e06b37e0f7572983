"""torchao checkpoints."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.torchao.method:TorchAo"
    return [
        Entry(
            "torchao",
            target,
            "torchao: integers of 1 to 8 bits, fp8, MXFP8, MXFP4, NVFP4, mixed by layer",
        )
    ]
