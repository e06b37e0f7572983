"""`--quantization int8` and `int4`: plain checkpoints are rounded to nearest on load."""

from __future__ import annotations

from typing import Literal

from core.api import Entry, Option, hookimpl

FOLDER = "builtin_plugins.quant_methods.rtn.method"


@hookimpl
def engine_options() -> list[Option]:
    """Options of round-to-nearest quantization."""
    text = (
        "Inputs that share a scale, with --quantization int8 (default: 128) or int4 (default: 32)."
    )
    methods = ("quantization=int8", "quantization=int4", "quantization=experts_int8")
    return [Option("quantization_group", Literal[32, 64, 128] | None, None, text, needs=methods)]


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return one entry per number of bits."""
    return [
        Entry(
            "int8",
            f"{FOLDER}:Int8",
            "plain weights, rounded to 8 bits while they load",
            gives=frozenset({"rtn", "tpu_int8"}),
        ),
        Entry(
            "experts_int8",
            f"{FOLDER}:ExpertsInt8",
            "experts rounded to 8 bits while they load; all else as it is",
        ),
        Entry("int4", f"{FOLDER}:Int4", "plain weights, rounded to 4 bits while they load"),
    ]
