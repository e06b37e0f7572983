"""ERNIE 4.5 MoE: softmax scores with a correction bias, shared experts."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec, MtpLayerSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    correction_bias="mlp.moe_statics.e_score_correction_bias",
    correction_bias_row=True,
    ignored=("*.rotary_emb.inv_freq", "model.mtp_*"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry(
            "Ernie4_5_MoeForCausalLM",
            "builtin_plugins.models.ernie4_5_moe:spec",
            "ERNIE 4.5, mixture",
        )
    ]


def spec(hf_config: object) -> DecoderSpec:
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
        shared=MlpSpec(width=shared * width, activation=facts.activation(), bias=bias)
        if shared
        else None,
    )
    rope = facts.rope(facts.heads()["head_size"], theta=5e5, interleaved=True)
    attention = facts.attention(rope=rope, qkv_bias=bias, out_bias=bias)
    every = facts.count("moe_layer_interval", 1)
    first = facts.count("moe_layer_start_index", 1, least=0)
    last = facts.count("moe_layer_end_index", -1, least=-1)
    last = num_layers - 1 if last == -1 else last
    layers = tuple(
        LayerSpec(
            attention=attention,
            mlp=experts if (i + 1) % every == 0 and first <= i <= last else facts.mlp(bias=bias),
            attention_in=norm,
            mlp_in=norm,
        )
        for i in range(num_layers)
    )
    mtp = MtpLayerSpec(
        layer=LayerSpec(
            attention=attention, mlp=facts.mlp(bias=bias), attention_in=norm, mlp_in=norm
        ),
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
    return DecoderSpec(**model, layers=layers, norm=norm, head_bias=bias, mtp=used, names=NAMES)
