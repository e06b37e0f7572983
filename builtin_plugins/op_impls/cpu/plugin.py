"""C++ ops for CPUs; where the library is missing, or an input is unusual, the reference does the
work.
"""

from core.api import Entry, hookimpl

OPS = {
    "rms_norm": "RMS norm in one pass over each row",
    "add_rms_norm": "residual sum and RMS norm in one pass",
    "layer_norm": "layer norm of a row while it is near",
    "add_layer_norm": "residual sum, and layer norm of a row while it is near",
    "embedding": "rows copied",
    "silu": "SiLU",
    "sigmoid": "equal bits in any batch",
    "gelu": "GELU by Abramowitz and Stegun 7.1.26",
    "gelu_tanh": "tanh GELU by a sigmoid",
    "silu_and_mul": "SiLU and product without temporaries",
    "gelu_tanh_and_mul": "tanh GELU and product without temporaries",
    "rotary": "rotary embedding in place",
    "widen": "to float32",
    "select_experts": "scores by the sigmoid with equal bits in any batch",
    "select_tokens": "scores of index keys, and the highest of them",
    "best": "greedy choice in two passes over each row",
    "draw": "one token of a softmax in two passes over each row",
    "linear": "products with plain weights, each row for itself",
}


@hookimpl
def engine_op_impls() -> list[Entry]:
    return [
        Entry(
            f"{op}/cpu",
            f"builtin_plugins.op_impls.cpu.ops:{op}",
            f"C++: {summary}",
            priority=10,
            when={"device": "cpu"},
        )
        for op, summary in OPS.items()
    ]
