"""Checkpoints of eight-bit floats."""

from core.api import Entry, hookimpl

FOLDER = "builtin_plugins.quant_methods.fp8"


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the methods."""
    return [
        Entry(
            "fp8",
            f"{FOLDER}.method:make_fp8",
            "eight-bit floats with a scale for a tensor or a block; of plain weights, for a row, "
            "rounded while they load",
            gives=frozenset({"ptpc_fp8"}),
        ),
        Entry(
            "fbgemm_fp8",
            f"{FOLDER}.method:FbgemmFp8",
            "eight-bit floats with a scale for each row, as FBGEMM writes them",
        ),
        Entry(
            "deepspeedfp",
            f"{FOLDER}.rounding:DeepSpeedFp",
            "plain weights that DeepSpeed was to round: as fp8 rounds them",
        ),
    ]
