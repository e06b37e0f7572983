"""Weights on GPUs: plain and quantized ones."""

from core.api import Entry, hookimpl

FOLDER = "builtin_plugins.quant_methods.triton.method"


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method's entry, and that of devices that multiply FP8."""
    gives = frozenset({"plain weights"})
    return [
        Entry(
            "triton",
            f"{FOLDER}:TritonWeights",
            "Triton: plain weights, and quantized weights in their stored format",
            priority=10,
            when={"triton": [True]},
            gives=gives,
        ),
        Entry(
            "triton_float8",
            f"{FOLDER}:Float8Weights",
            "the same, with FP8 products by torch for checkpoints made for 8-bit activations",
            priority=20,
            when={"triton": [True], "float8": [True], "dtype": ["bfloat16"]},
            gives=gives,
        ),
        Entry(
            "triton_block_scaled",
            f"{FOLDER}:BlockScaledWeights",
            "the same, with FP4 products by Triton for checkpoints of MXFP4 or NVFP4 activations",
            priority=30,
            when={"triton": [True], "capability": range(100, 200), "dtype": ["bfloat16"]},
            gives=gives,
        ),
    ]
