"""LFM2: gated short convolutions, attention in some layers, experts in the larger models."""

from builtin_plugins.models.mixtral import EXPERTS_IN_MEMORY
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import GatedConvSpec

HERE = "builtin_plugins.models.lfm2"
NAMES = WeightNames(
    recurrent="conv",
    attention_in="operator_norm",
    mlp_in="ffn_norm",
    final_norm="model.embedding_norm",
    o="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    router="feed_forward.gate",
    correction_bias="feed_forward.expert_bias",
    expert="feed_forward.experts.{}",
    expert_gate="w1",
    expert_up="w3",
    expert_down="w2",
    rename=EXPERTS_IN_MEMORY,
    experts_gate_up="feed_forward.experts.gate_up_proj",
    experts_down="feed_forward.experts.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Lfm2ForCausalLM", f"{HERE}:lfm2", "LFM2"),
        Entry("Lfm2MoeForCausalLM", f"{HERE}:lfm2_moe", "LFM2, mixture of experts"),
    ]


def lfm2(hf_config: object) -> DecoderSpec:
    """Return the facts of an LFM2 config; its MLP width is adjusted by default."""
    facts = ModelFacts(hf_config)
    width = facts.count("block_ff_dim", facts.get("intermediate_size"))
    if facts.flag("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        unit = facts.count("block_multiple_of", 256)
        factor = facts.number_or_none("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            width = -(-int(factor * width) // unit) * unit
    return _decoder(facts, [MlpSpec(width=width)] * facts.num_layers())


def lfm2_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of an LFM2 config with experts after the first layers."""
    facts = ModelFacts(hf_config)
    experts = MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts", 32)),
        top_k=facts.count("num_experts_per_tok", 4),
        width=facts.count("moe_intermediate_size", 1792),
        score="sigmoid",
        renormalize=facts.flag("norm_topk_prob", True),
        scale=facts.number("routed_scaling_factor", 1.0),
        correction_bias=facts.flag("use_expert_bias", True),
    )
    dense = facts.count("num_dense_layers", 2, least=0)
    plain = MlpSpec(width=facts.count("intermediate_size"))
    return _decoder(facts, [plain if i < dense else experts for i in range(facts.num_layers())])


def _decoder(facts: ModelFacts, mlps: list[MlpSpec] | list[MlpSpec | MoeSpec]) -> DecoderSpec:
    norm = facts.norm("norm_eps", 1e-5)
    heads = facts.heads()
    attention = facts.attention(
        **heads, rope=facts.rope(heads["head_size"], theta=1e6), qk_norm=norm
    )
    conv = GatedConvSpec(kernel=facts.count("conv_L_cache", 3), bias=facts.flag("conv_bias"))
    kinds = facts.layer_kinds("full_attention", "conv")
    if kinds is None:
        full = (
            range(len(mlps))
            if facts.get("full_attn_idxs") is None
            else facts.indices("full_attn_idxs")
        )
        kinds = ["full_attention" if i in full else "conv" for i in range(len(mlps))]
    layers = tuple(
        LayerSpec(
            attention=attention if kind == "full_attention" else None,
            recurrent=conv if kind == "conv" else None,
            mlp=mlp,
            attention_in=norm,
            mlp_in=norm,
        )
        for kind, mlp in zip(kinds, mlps, strict=True)
    )
    tied = facts.flag("tie_embedding", facts.flag("tie_word_embeddings", True))
    return DecoderSpec(
        **{**facts.decoder(), "tied_head": tied}, layers=layers, norm=norm, names=NAMES
    )
