"""Triton ops for GPUs; what is not here is torch's."""

from core.api import Entry, hookimpl

OPS = {
    "rms_norm": "RMS norm, small rows several to a program",
    "add_rms_norm": "residual sum and RMS norm in one pass",
    "layer_norm": "layer norm in one pass",
    "add_layer_norm": "residual sum and layer norm in one pass",
    "silu_and_mul": "SiLU and product without temporaries",
    "gelu_and_mul": "exact GELU and product without temporaries",
    "gelu_tanh_and_mul": "tanh GELU and product without temporaries",
    "relu_and_mul": "ReLU and product without temporaries",
    "gated_linear": "gate, up and activation of few rows in one launch, where that is faster",
    "rotary": "query and key rotated in place, in one launch",
    "latent_rows": "keys and rotated queries of latent attention in one launch",
    "select_experts": "scores, groups and choice of experts in one launch",
    "moe": "experts by grouped products, activation and weighted sum fused",
    "causal_conv": "convolution and SiLU in one pass",
    "selective_scan": "a state walks through its stretch in registers",
    "ssd_scan": "a state walks through short stretches in registers, and goes by chunks through "
    "long ones",
    "delta_scan": "a state walks through short stretches in registers, and goes by chunks through "
    "long ones",
    "best": "greedy choice, spans side by side",
    "truncate": "top-k and top-p without a sort",
    "draw": "one token of a softmax, spans side by side",
}


@hookimpl
def engine_op_impls() -> list[Entry]:
    return [
        Entry(
            f"{op}/triton",
            f"builtin_plugins.op_impls.triton.ops:{op}",
            f"Triton: {summary}",
            priority=10,
            when={"triton": [True]},
        )
        for op, summary in OPS.items()
    ]
