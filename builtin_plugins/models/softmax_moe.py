"""MoE models with softmax scores: DBRX, ERNIE 4.5, Grok 1, Hunyuan, Step 3."""

from typing import Any

from builtin_plugins.models.alibi import MPT_FIELDS
from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec, MtpLayerSpec
from core.model_spec.facts import ModelFacts, renamed
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.softmax_moe"
DBRX = WeightNames(
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
ERNIE = WeightNames(
    correction_bias="mlp.moe_statics.e_score_correction_bias",
    correction_bias_row=True,
    ignored=("*.rotary_emb.inv_freq", "model.mtp_*"),
)
GROK = WeightNames(
    attention_in="pre_attn_norm",
    attention_out="post_attn_norm",
    mlp_in="pre_moe_norm",
    mlp_out="post_moe_norm",
    q="attn.q_proj",
    k="attn.k_proj",
    v="attn.v_proj",
    o="attn.o_proj",
    router="moe_block.gate",
    expert="moe_block.experts.{}",
    expert_gate="linear",
    expert_up="linear_v",
    expert_down="linear_1",
    rename=((r"norm\.scale$", "norm.weight"),),
)
HUNYUAN = WeightNames(
    q_norm="self_attn.query_layernorm",
    k_norm="self_attn.key_layernorm",
    router="mlp.gate.wg",
    shared_gate="mlp.shared_mlp.gate_proj",
    shared_up="mlp.shared_mlp.up_proj",
    shared_down="mlp.shared_mlp.down_proj",
)
STEP = WeightNames(
    query_latent="self_attn.q_proj",
    query_latent_norm="self_attn.inter_norm",
    query_up="self_attn.wq",
    router="moe.gate",
    expert="",
    experts_gate_up="moe.gate_proj.weight",
    experts_up="moe.up_proj.weight",
    experts_down="moe.down_proj.weight",
    experts_layout="apart",
    shared_gate="share_expert.gate_proj",
    shared_up="share_expert.up_proj",
    shared_down="share_expert.down_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("DbrxForCausalLM", f"{HERE}:dbrx", "DBRX"),
        Entry("Ernie4_5_MoeForCausalLM", f"{HERE}:ernie4_5", "ERNIE 4.5, mixture"),
        Entry("Grok1ModelForCausalLM", f"{HERE}:grok", "Grok 1"),
        Entry("Grok1ForCausalLM", f"{HERE}:grok", "Grok 1, as vLLM calls it"),
        Entry("HunYuanMoEV1ForCausalLM", f"{HERE}:hunyuan", "Hunyuan, mixture of experts"),
        Entry("Step3TextForCausalLM", f"{HERE}:step3", "Step 3, text"),
    ]


def dbrx(hf_config: object) -> DecoderSpec:
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
    layer = pre_norm_layer(
        norm,
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
    )
    return DecoderSpec(**facts.decoder(layer, **MPT_FIELDS), norm=norm, names=DBRX)


def ernie4_5(hf_config: object) -> DecoderSpec:
    """Return the facts of an ERNIE 4.5 config with experts."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("use_bias")
    num_layers = facts.num_layers()
    width = facts.count("moe_intermediate_size")
    shared = facts.count("moe_num_shared_experts", 2, least=0)
    experts = MoeSpec(
        experts=facts.count("moe_num_experts"),
        top_k=facts.count("moe_k"),
        width=width,
        activation=facts.activation(),
        correction_bias=True,
        router_fp32=True,
        shared=facts.mlp(width=shared * width, bias=bias) if shared else None,
    )
    rope = facts.rope(facts.heads()["head_size"], theta=5e5, interleaved=True)
    attention = facts.attention(rope=rope, qkv_bias=bias, out_bias=bias)
    every = facts.count("moe_layer_interval", 1)
    first = facts.count("moe_layer_start_index", 1, least=0)
    last = facts.count("moe_layer_end_index", -1, least=-1)
    last = num_layers - 1 if last == -1 else last
    dense = facts.mlp(bias=bias)
    mlps = [
        experts if (i + 1) % every == 0 and first <= i <= last else dense for i in range(num_layers)
    ]
    layers = tuple(pre_norm_layer(norm, attention=attention, mlp=mlp) for mlp in mlps)
    mtp = MtpLayerSpec(
        layer=pre_norm_layer(norm, attention=attention, mlp=dense),
        norm=norm,
        stored="model.mtp_block.0",
        tensors=("model.mtp_*.0.*",),
        token_norm="model.mtp_emb_norm.0",
        hidden_norm="model.mtp_hidden_norm.0",
        product="model.mtp_linear_proj.0",
        product_bias=bias,
    )
    used = mtp if facts.count("num_nextn_predict_layers", 0, least=0) else None
    model = facts.decoder(tied=True)
    return DecoderSpec(**model, layers=layers, norm=norm, head_bias=bias, mtp=used, names=ERNIE)


def grok(hf_config: object) -> DecoderSpec:
    """Return the facts of a Grok 1 config; expert weights are softmax scores, not normalised."""
    facts = ModelFacts(hf_config)
    facts.refuse("residual_moe")  # of Grok 2
    norm = facts.norm(eps=1e-5)
    size = facts.heads()["head_size"]
    attention = facts.attention(
        scale=facts.number("attn_output_multiplier", size**-0.5),
        softcap=facts.number("max_attn_value", facts.number("attn_logit_softcapping", 30.0)),
    )
    scores: dict[str, Any] = {"renormalize": False, "router_fp32": True}
    experts = facts.moe("intermediate_size", activation="gelu_tanh", defaults=(8, 2), **scores)
    layer = pre_norm_layer(norm, attention=attention, mlp=experts, attention_out=norm, mlp_out=norm)
    return DecoderSpec(
        **facts.decoder(layer, tied=True),
        norm=norm,
        embed_scale=facts.number("embedding_multiplier_scale", 78.38367176906169),
        logit_scale=facts.number("output_multiplier_scale", 0.5773502691896257),
        names=GROK,
    )


def hunyuan(hf_config: object) -> DecoderSpec:
    """Return the facts of a Hunyuan MoE config; counts may be per layer."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    num_layers = facts.num_layers()
    attention = facts.attention(qk_norm=norm, qk_norm_after_rope=True, qkv_bias=bias, out_bias=bias)
    experts = facts.per_layer("num_experts")
    chosen = facts.per_layer("moe_topk")
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=attention,
            mlp=MoeSpec(
                experts=experts[i],
                top_k=chosen[i],
                width=facts.count("intermediate_size"),
                activation=facts.activation(),
                router_fp32=True,
                shared=facts.mlp(),
            ),
        )
        for i in range(num_layers)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=HUNYUAN)


def step3(hf_config: object) -> DecoderSpec:
    """Return the facts of a Step 3 text config; `moe_layers_enum` lists the layers with experts."""
    facts = ModelFacts(renamed(hf_config, max_position_embeddings="max_position_embedding"))
    norm = facts.norm(eps=1e-5)
    size = facts.count("head_dim", 256)
    attention = facts.attention(
        kv_heads=1,
        head_size=size,
        rope=facts.rope(size, theta=500_000.0),
        query_rank=facts.count("share_q_dim", size),
        query_norm=norm,
    )
    experts = MoeSpec(
        experts=facts.count("moe_num_experts"),
        top_k=facts.count("moe_top_k"),
        width=facts.count("moe_intermediate_size"),
        renormalize=facts.flag("norm_expert_weight"),
        shared=MlpSpec(width=facts.count("share_expert_dim")),
    )
    num_layers = facts.num_layers()
    listed = facts.get("moe_layers_enum")
    sparse = range(1, num_layers) if listed is None else [int(i) for i in str(listed).split(",")]
    layers = tuple(
        pre_norm_layer(norm, attention=attention, mlp=experts if i in sparse else facts.mlp())
        for i in range(num_layers)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=STEP)
