"""Checkpoints in the compressed-tensors format."""

from typing import Any, Literal

from core.api import EngineConfig, Entry, Option, Registry, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Options of all methods that read how a checkpoint rounds activations."""
    text = (
        "Round activations as a quantized checkpoint specifies. auto: where this makes products "
        "faster; on: everywhere; off: nowhere, which is more exact."
    )
    return [Option("activation_quantization", Literal["auto", "on", "off"], "auto", text)]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    """Raise `ModelError` if the option is set for a model of plain weights."""
    if config.options["activation_quantization"] != "auto":
        from builtin_plugins.quant_methods.stored.activations import check_plain  # lazy: torch

        check_plain(config, registry)
    return []


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry."""
    target = "builtin_plugins.quant_methods.compressed_tensors.method:CompressedTensors"
    summary = "compressed-tensors: integers of 1 to 8 bits, floats of 8, 6 and 4, mixed by layer"
    return [Entry("compressed-tensors", target, summary)]
