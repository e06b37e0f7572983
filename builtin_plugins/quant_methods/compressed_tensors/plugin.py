"""Checkpoints in the compressed-tensors format."""

from core.api import Entry, hookimpl


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.compressed_tensors.method:CompressedTensors"
    summary = "compressed-tensors: integers of 1 to 8 bits, floats of 8, 6 and 4, mixed by layer"
    return [Entry("compressed-tensors", target, summary)]
