"""Entry points: the method, which replaces the builtin one, and the option for its type."""

from __future__ import annotations

from typing import Literal

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Options of the method."""
    text = "Type that --quantization bitsandbytes quantizes plain weights to."
    return [Option("bitsandbytes_type", Literal["nf4", "fp4", "int8"], "nf4", text)]


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry; it reads bitsandbytes checkpoints as well."""
    target = "engine_bitsandbytes.method:make_method"
    summary = "bitsandbytes: its checkpoints, and plain ones quantized while they load"
    return [
        Entry(
            "bitsandbytes",
            target,
            summary,
            requires=("bitsandbytes>=0.46.1",),
            replaces="quant_bitsandbytes",
        )
    ]
