"""Qwen2 and Qwen3 with experts in all layers or in every n-th."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MlpSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.qwen_moe"
NAMES = WeightNames(
    shared_gate="mlp.shared_expert.gate_proj",
    shared_up="mlp.shared_expert.up_proj",
    shared_down="mlp.shared_expert.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Qwen2MoeForCausalLM", f"{HERE}:qwen2_moe", "Qwen1.5 and Qwen2, mixture"),
        Entry("Qwen3MoeForCausalLM", f"{HERE}:qwen3_moe", "Qwen3, mixture of experts"),
    ]


def qwen2_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen2-MoE config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    activation = facts.activation()
    experts = facts.moe(
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
        pre_norm_layer(
            norm,
            attention=facts.attention(qkv_bias=bias, window=window),
            mlp=facts.mlp() if i in dense or (i + 1) % step else experts,
        )
        for i, window in enumerate(windows)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)


def qwen3_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen3-MoE config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    window = facts.window(4096) if facts.flag("use_sliding_window") else None
    attention = facts.attention(qkv_bias=bias, out_bias=bias, qk_norm=norm, window=window)
    experts = facts.moe(renormalize=facts.flag("norm_topk_prob"))
    step = facts.count("decoder_sparse_step", 1)
    dense = facts.indices("mlp_only_layers")
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=attention,
            mlp=facts.mlp() if index in dense or (index + 1) % step else experts,
        )
        for index in range(facts.num_layers())
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)
