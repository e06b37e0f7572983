"""MoE models with sigmoid scores and a correction bias: GLM 4.5, dots.llm1, Solar Open, MiniMax M2,
AFM.
"""

from builtin_plugins.models.mistral import MIXTRAL_NAMES
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec, mtp_layer
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.sigmoid_moe"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Glm4MoeForCausalLM", f"{HERE}:glm4_moe", "GLM 4.5 to 4.7"),
        Entry("Dots1ForCausalLM", f"{HERE}:dots1", "dots.llm1"),
        Entry("SolarOpenForCausalLM", f"{HERE}:solar_open", "Solar Open"),
        Entry("MiniMaxM2ForCausalLM", f"{HERE}:minimax_m2", "MiniMax M2"),
        Entry("AfmoeForCausalLM", f"{HERE}:afmoe", "Arcee Trinity"),
    ]


def _experts(facts: ModelFacts, *, renormalize: bool = True) -> MoeSpec:
    """Return grouped experts with a shared expert."""
    width = facts.count("moe_intermediate_size")
    shared = facts.count("n_shared_experts", 1)
    return MoeSpec(
        experts=facts.count("n_routed_experts", facts.get("num_local_experts")),
        top_k=facts.count("num_experts_per_tok"),
        width=width,
        activation=facts.activation(),
        score="sigmoid",
        renormalize=facts.flag("norm_topk_prob", renormalize),
        scale=facts.number("routed_scaling_factor", 1.0),
        correction_bias=True,
        groups=facts.count("n_group", 1),
        topk_groups=facts.count("topk_group", 1),
        router_fp32=True,
        shared=MlpSpec(width=shared * width, activation=facts.activation()),
    )


def glm4_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of a GLM 4.5 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    experts = _experts(facts)
    num_layers = facts.num_layers()
    attention = facts.attention(
        rope=facts.rope(facts.heads()["head_size"], share=0.5),
        qk_norm=norm if facts.flag("use_qk_norm") else None,
        qkv_bias=facts.flag("attention_bias"),
    )
    dense = facts.count("first_k_dense_replace", 1, least=0)
    layers = tuple(
        pre_norm_layer(norm, attention=attention, mlp=facts.mlp() if i < dense else experts)
        for i in range(num_layers)
    )
    names = WeightNames(ignored=("*.rotary_emb.inv_freq", f"model.layers.{num_layers}.*"))
    further = pre_norm_layer(norm, attention=attention, mlp=experts)
    mtp = (
        mtp_layer(further, norm, num_layers)
        if facts.count("num_nextn_predict_layers", 0, least=0)
        else None
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, mtp=mtp, names=names)


def dots1(hf_config: object) -> DecoderSpec:
    """Return the facts of a dots.llm1 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    experts = _experts(facts, renormalize=False)
    bias = facts.flag("attention_bias")
    dense = facts.count("first_k_dense_replace", 0, least=0)
    windows = facts.windows(
        facts.window(4096), full_below=facts.count("max_window_layers", 62, least=0)
    )
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(qk_norm=norm, window=window, qkv_bias=bias, out_bias=bias),
            mlp=facts.mlp() if i < dense else experts,
        )
        for i, window in enumerate(windows)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)


def solar_open(hf_config: object) -> DecoderSpec:
    """Return the facts of a Solar Open config: every layer has experts."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    heads = facts.heads(128)
    rope = facts.rope(heads["head_size"], theta=1e6)
    attention = facts.attention(**heads, rope=rope, qkv_bias=facts.flag("attention_bias"))
    layer = pre_norm_layer(norm, attention=attention, mlp=_experts(facts))
    return DecoderSpec(**facts.decoder(layer), norm=norm)


def minimax_m2(hf_config: object) -> DecoderSpec:
    """Return the facts of a MiniMax M2 config: norms over all query and all key heads, partial
    RoPE.
    """
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    heads = facts.heads(128)
    size = heads["head_size"]
    rope = facts.rope(size, theta=5e6, share=facts.count("rotary_dim", size) / size)
    experts = facts.moe("intermediate_size", score="sigmoid", correction_bias=True)
    attention = facts.attention(**heads, rope=rope, qk_norm=norm, qk_norm_over="all")
    layer = pre_norm_layer(norm, attention=attention, mlp=experts)
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=MIXTRAL_NAMES)


def afmoe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Trinity config: gated attention, norms around each sublayer, RoPE in
    windowed layers.
    """
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    heads = facts.heads(128)
    bias = facts.flag("attention_bias")
    rope = facts.rope(heads["head_size"])
    width = facts.count("moe_intermediate_size")
    experts = facts.moe(
        score="sigmoid",
        scale=facts.number("route_scale", 1.0),
        correction_bias=True,
        shared=MlpSpec(
            width=width * facts.count("num_shared_experts", 2), activation=facts.activation()
        ),
    )
    common = {**heads, "qk_norm": norm, "gate": True, "qkv_bias": bias, "out_bias": bias}
    dense = facts.count("num_dense_layers", 1, least=0)
    every = facts.count("global_attn_every_n_layers", 4)
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                **common, rope=None if window is None else rope, window=window
            ),
            mlp=facts.mlp() if i < dense else experts,
            attention_out=norm,
            mlp_out=norm,
        )
        for i, window in enumerate(facts.windows(facts.window(1024), full_every=every))
    )
    names = WeightNames(
        attention_out="post_attention_layernorm",
        mlp_in="pre_mlp_layernorm",
        mlp_out="post_mlp_layernorm",
        router="mlp.router.gate",
        correction_bias="mlp.expert_bias",
    )
    scale = facts.count("hidden_size") ** 0.5 if facts.flag("mup_enabled") else 1.0
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, embed_scale=scale, names=names)
