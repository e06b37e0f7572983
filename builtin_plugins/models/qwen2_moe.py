"""Qwen2-MoE: Qwen2 with experts and a gated shared expert."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    shared_gate="mlp.shared_expert.gate_proj",
    shared_up="mlp.shared_expert.up_proj",
    shared_down="mlp.shared_expert.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry(
            "Qwen2MoeForCausalLM",
            "builtin_plugins.models.qwen2_moe:spec",
            "Qwen1.5 and Qwen2, mixture",
        )
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen2-MoE config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    activation = facts.activation()
    experts = MoeSpec(
        experts=facts.count("num_experts"),
        top_k=facts.count("num_experts_per_tok"),
        width=facts.count("moe_intermediate_size"),
        activation=activation,
        renormalize=facts.flag("norm_topk_prob"),
        shared=MlpSpec(width=facts.count("shared_expert_intermediate_size"), activation=activation),
        shared_expert_gate=True,
    )
    size = facts.window(4096) if facts.flag("use_sliding_window") else None
    windows = facts.windows(size, full_every=2)
    if facts.get("layer_types") is None:
        below = facts.count("max_window_layers", 28, least=0)
        windows = [window if i < below else None for i, window in enumerate(windows)]
    step = facts.count("decoder_sparse_step", 1)
    dense = facts.indices("mlp_only_layers")
    bias = facts.flag("qkv_bias", True)
    layers = tuple(
        LayerSpec(
            attention=facts.attention(qkv_bias=bias, window=window),
            mlp=facts.mlp() if i in dense or (i + 1) % step else experts,
            attention_in=norm,
            mlp_in=norm,
        )
        for i, window in enumerate(windows)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
