"""FP8 checkpoints and FP8 quantization on load."""

from core.api import Entry, hookimpl

FOLDER = "builtin_plugins.quant_methods.fp8"


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the methods' entries."""
    return [
        Entry(
            "fp8",
            f"{FOLDER}.method:make_fp8",
            "FP8 checkpoints with one scale per tensor or block; plain checkpoints are quantized "
            "per row on load",
            gives=frozenset({"ptpc_fp8"}),
        ),
        Entry(
            "fbgemm_fp8",
            f"{FOLDER}.method:FbgemmFp8",
            "FP8 checkpoints of FBGEMM, one scale per row",
        ),
        Entry(
            "deepspeedfp",
            f"{FOLDER}.method:DeepSpeedFp",
            "plain checkpoints configured for DeepSpeed floats; quantized on load like fp8",
        ),
    ]
