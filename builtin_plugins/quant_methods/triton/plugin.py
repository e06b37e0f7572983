"""Who keeps weights on GPUs: plain ones as they are, numbers of few bits in as many."""

from core.api import Entry, hookimpl

FOLDER = "builtin_plugins.quant_methods.triton.method"


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Return the method, and that of devices which multiply eight-bit floats."""
    gives = frozenset({"plain weights"})
    return [
        Entry(
            "triton",
            f"{FOLDER}:TritonWeights",
            "Triton: plain weights as they are, numbers of few bits as they are stored",
            priority=10,
            when={"triton": [True]},
            gives=gives,
        ),
        Entry(
            "triton_float8",
            f"{FOLDER}:Float8Weights",
            "the same, and eight-bit floats by torch, where checkpoints were made for inputs of "
            "eight bits",
            priority=20,
            when={"triton": [True], "float8": [True], "dtype": ["bfloat16"]},
            gives=gives,
        ),
    ]
