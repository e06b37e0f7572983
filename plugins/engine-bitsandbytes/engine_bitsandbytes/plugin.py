"""What the distribution brings: the method for plain checkpoints, in place of the engine's own, and
which type it makes.
"""

from __future__ import annotations

from typing import Literal

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    """Which numbers are made."""
    text = "What --quantization bitsandbytes makes of plain weights."
    return [Option("bitsandbytes_type", Literal["nf4", "fp4", "int8"], "nf4", text)]


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method; it reads what the engine's own does."""
    target = "engine_bitsandbytes.method:make_method"
    summary = "bitsandbytes: its checkpoints, and plain ones quantized while they load"
    return [Entry("bitsandbytes", target, summary, priority=10, requires=("bitsandbytes>=0.46.1",))]
