"""DBRX: MoE with expert weights stacked in three tensors, LayerNorm without bias."""

from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    embed="transformer.wte",
    final_norm="transformer.norm_f",
    layer="transformer.blocks.{}",
    attention_in="norm_attn_norm.norm_1",
    mlp_in="norm_attn_norm.norm_2",
    qkv="norm_attn_norm.attn.Wqkv",
    o="norm_attn_norm.attn.out_proj",
    router="ffn.router.layer",
    expert="",
    experts_gate_up="ffn.experts.mlp.w1",
    experts_up="ffn.experts.mlp.v1",
    experts_down="ffn.experts.mlp.w2",
    experts_layout="stacked",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("DbrxForCausalLM", "builtin_plugins.models.dbrx:spec", "DBRX")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a DBRX config."""
    facts = ModelFacts(hf_config)
    own = facts.part("attn_config")
    ffn = facts.part("ffn_config")
    power = ffn.number_or_none("moe_normalize_expert_weights", 1.0)
    if power not in (None, 1.0):
        raise ModelError(
            f"moe_normalize_expert_weights in config.json is {power}; only 1 and null are served."
        )
    norm = NormSpec("layer", eps=1e-5)
    hidden = facts.count("d_model")
    count = facts.count("n_heads")
    size = facts.head_size(hidden, count)
    layer = LayerSpec(
        attention=AttentionSpec(
            heads=count,
            kv_heads=own.count("kv_n_heads", 1),
            head_size=size,
            rope=facts.rope(size, theta=own.number("rope_theta", 10_000.0)),
            clip_qkv=own.number_or_none("clip_qkv"),
        ),
        mlp=MoeSpec(
            experts=ffn.count("moe_num_experts", 4),
            top_k=ffn.count("moe_top_k", 1),
            width=ffn.count("ffn_hidden_size", 3584),
            activation=ffn.part("ffn_act_fn").activation("name"),
            renormalize=power is not None,
        ),
        attention_in=norm,
        mlp_in=norm,
    )
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=facts.num_positions("max_seq_len"),
        layers=(layer,) * facts.num_layers("n_layers"),
        norm=norm,
        tied_head=facts.flag("tie_word_embeddings"),
        names=NAMES,
    )
