"""Further GPT models: OPT, GPT-Neo, GPT-NeoX, GPT-J, CodeGen, StarCoder 1, BioGPT, XGLM."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.rope import RopeSpec

HERE = "builtin_plugins.models.gpt_like"
GPT = WeightNames(
    embed="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    attention_in="ln_1",
    mlp_in="ln_2",
    q="attn.q_proj",
    k="attn.k_proj",
    v="attn.v_proj",
    o="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
    ignored=("*.attn.bias", "*.attn.masked_bias", "*.attn.causal_mask"),
)
FAIRSEQ = WeightNames(
    embed="model.embed_tokens",
    positions="model.embed_positions",
    final_norm="model.layer_norm",
    attention_in="self_attn_layer_norm",
    attention_out="self_attn_layer_norm",
    o="self_attn.out_proj",
    mlp_in="final_layer_norm",
    mlp_out="final_layer_norm",
    up="fc1",
    down="fc2",
    ignored=("*.embed_positions.weights",),
)
SIZES: dict[str, Any] = {"hidden": "n_embd", "positions": "n_positions", "layers": "n_layer"}
"""Names of sizes in configs of GPT's form."""
NEOX = WeightNames(
    embed="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
    layer="gpt_neox.layers.{}",
    qkv="attention.query_key_value",
    qkv_grouped=True,
    o="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("OPTForCausalLM", f"{HERE}:opt", "OPT"),
        Entry("GPTNeoForCausalLM", f"{HERE}:gpt_neo", "GPT-Neo"),
        Entry("GPTJForCausalLM", f"{HERE}:gptj", "GPT-J"),
        Entry("CodeGenForCausalLM", f"{HERE}:codegen", "CodeGen 1 and 2"),
        Entry("GPTBigCodeForCausalLM", f"{HERE}:gpt_bigcode", "StarCoder 1 and SantaCoder"),
        Entry("BioGptForCausalLM", f"{HERE}:biogpt", "BioGPT"),
        Entry("XGLMForCausalLM", f"{HERE}:xglm", "XGLM"),
        Entry("GPTNeoXForCausalLM", f"{HERE}:gpt_neox", "GPT-NeoX and Pythia"),
        Entry("GPTNeoXJapaneseForCausalLM", f"{HERE}:japanese", "GPT-NeoX by ABEJA"),
    ]


def _attention(
    facts: ModelFacts,
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
    **attention: Any,
) -> AttentionSpec:
    """Return attention of equal heads over the width of the model; `hidden` and `heads` are the
    config's names.
    """
    count = facts.count(heads)
    size = facts.head_size(facts.count(hidden), count)
    return AttentionSpec(**{"heads": count, "kv_heads": count, "head_size": size, **attention})


def _mlp(facts: ModelFacts, width: int, activation: str, *, bias: bool = True) -> MlpSpec:
    """Return an MLP without a gate; `activation` is the default of the config class."""
    activation = facts.activation("activation_function", activation)
    return MlpSpec(width=width, activation=activation, gated=False, bias=bias)


def _embed_scale(facts: ModelFacts, hidden: str) -> float:
    """Return the factor on the embeddings; `hidden` is the config's name."""
    return facts.count(hidden) ** 0.5 if facts.flag("scale_embedding", True) else 1.0


def opt(hf_config: object) -> DecoderSpec:
    """Return the facts of an OPT config: the smallest but one has norms after sums and narrower
    embeddings.
    """
    facts = ModelFacts(hf_config)
    affine = facts.flag("layer_norm_elementwise_affine", True)
    bias = facts.flag("enable_bias", True)
    norm = NormSpec("layer", eps=1e-5, weight=affine, bias=affine)
    before = facts.flag("do_layer_norm_before", True)
    layer = LayerSpec(
        attention=_attention(facts, qkv_bias=bias, out_bias=bias),
        mlp=_mlp(facts, facts.count("ffn_dim"), "relu", bias=bias),
        attention_in=norm if before else None,
        attention_out=None if before else norm,
        mlp_in=norm if before else None,
        mlp_out=None if before else norm,
        post_norm=not before,
    )
    names = replace(
        FAIRSEQ,
        embed="model.decoder.embed_tokens",
        embed_in="model.decoder.project_in",
        embed_out="model.decoder.project_out",
        positions="model.decoder.embed_positions",
        final_norm="model.decoder.final_layer_norm",
        layer="model.decoder.layers.{}",
        rename=((r"^decoder\.", "model.decoder."),),
    )
    size = facts.count("word_embed_proj_dim", facts.count("hidden_size"))
    last = not facts.flag("_remove_final_layer_norm")
    return DecoderSpec(
        **facts.decoder(layer, tied=True),
        embed_size=size,
        norm=norm if before and last else None,
        names=names,
        learned_positions=facts.num_positions(),
        position_offset=2,
    )


def gpt_neo(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT-Neo config: unscaled scores, alternating full and windowed
    layers.
    """
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("layer_norm_epsilon")
    hidden = facts.count("hidden_size")
    width = facts.count("intermediate_size", 4 * hidden)
    attention = _attention(facts, heads="num_heads", scale=1.0, out_bias=True)
    layer = pre_norm_layer(norm, attention=attention, mlp=_mlp(facts, width, "gelu_new"))
    local = replace(layer, attention=replace(attention, window=facts.count("window_size", 256)))
    kinds = [
        kind
        for pattern, times in facts.get("attention_types") or []
        for _ in range(times)
        for kind in pattern
    ]
    kinds = facts.get("attention_layers") or kinds or ["global"]
    attn: dict[str, Any] = {name: f"attn.attention.{name}_proj" for name in "qkv"}
    names = replace(GPT, **attn, o="attn.attention.out_proj", up="mlp.c_fc", down="mlp.c_proj")
    names = replace(names, ignored=("*.attn.attention.bias", "*.attn.attention.masked_bias"))
    layers = tuple(
        local if kinds[i % len(kinds)] == "local" else layer
        for i in range(facts.num_layers("num_layers"))
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        learned_positions=facts.num_positions(),
        layers=layers,
        norm=norm,
        names=names,
    )


def _parallel(facts: ModelFacts, names: WeightNames) -> DecoderSpec:
    """Return GPT-J's form: parallel sublayers with one norm, interleaved RoPE."""
    norm = facts.layer_norm("layer_norm_epsilon")
    width = facts.count("n_inner", 4 * facts.count("n_embd"))
    rope = RopeSpec(size=facts.count("rotary_dim", 64), interleaved=True)
    layer = LayerSpec(
        attention=_attention(facts, "n_embd", "n_head", rope=rope),
        mlp=_mlp(facts, width, "gelu_new"),
        attention_in=norm,
        parallel=True,
    )
    return DecoderSpec(**facts.decoder(layer, **SIZES), norm=norm, names=names, head_bias=True)


def gptj(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT-J config."""
    return _parallel(ModelFacts(hf_config), GPT)


def codegen(hf_config: object) -> DecoderSpec:
    """Return the facts of a CodeGen config: four parts of a fused tensor, each queries, values,
    keys of its heads.
    """
    facts = ModelFacts(hf_config)
    each = facts.count("n_head") // 4
    parts = [
        (3 * part + kind) * each + i for kind in (0, 2, 1) for part in range(4) for i in range(each)
    ]
    return _parallel(facts, replace(GPT, qkv="attn.qkv_proj", qkv_heads=tuple(parts)))


def gpt_bigcode(hf_config: object) -> DecoderSpec:
    """Return the facts of a StarCoder config: GPT-2 with one key-value head."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("layer_norm_epsilon")
    width = facts.count("n_inner", 4 * facts.count("n_embd"))
    shared = facts.flag("multi_query", True)
    attention = _attention(facts, "n_embd", "n_head", qkv_bias=True, out_bias=True)
    scale = None if facts.flag("scale_attn_weights", True) else 1.0
    layer = pre_norm_layer(
        norm,
        attention=replace(attention, scale=scale, kv_heads=1 if shared else attention.heads),
        mlp=_mlp(facts, width, "gelu_pytorch_tanh"),
    )
    names = replace(
        GPT,
        qkv="attn.c_attn",
        qkv_grouped=not shared,
        o="attn.c_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
    )
    return DecoderSpec(
        **facts.decoder(layer, tied=True, **SIZES),
        learned_positions=facts.num_positions("n_positions", 1024),
        norm=norm,
        names=names,
    )


def biogpt(hf_config: object) -> DecoderSpec:
    """Return the facts of a BioGPT config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec("layer", eps=1e-5, bias=True)
    layer = pre_norm_layer(
        norm,
        attention=_attention(facts, qkv_bias=True, out_bias=True),
        mlp=facts.mlp(activation=facts.activation(default="gelu"), gated=False, bias=True),
    )
    names = replace(FAIRSEQ, head="output_projection", rename=((r"^biogpt\.", "model."),))
    return DecoderSpec(
        **facts.decoder(layer, tied=True),
        norm=norm,
        names=names,
        position_offset=2,
        learned_positions=facts.num_positions(),
        embed_scale=_embed_scale(facts, "hidden_size"),
    )


def xglm(hf_config: object) -> DecoderSpec:
    """Return the facts of an XGLM config: positions are sines and cosines."""
    facts = ModelFacts(hf_config)
    facts.refuse("add_cross_attention")
    norm = NormSpec("layer", eps=1e-5, bias=True)
    layer = pre_norm_layer(
        norm,
        attention=_attention(facts, "d_model", "attention_heads", qkv_bias=True, out_bias=True),
        mlp=_mlp(facts, facts.count("ffn_dim"), "gelu"),
    )
    return DecoderSpec(
        **facts.decoder(layer, tied=True, hidden="d_model", layers="num_layers"),
        norm=norm,
        names=FAIRSEQ,
        sinusoidal_positions=True,
        position_offset=2,
        embed_scale=_embed_scale(facts, "d_model"),
    )


def gpt_neox(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT-NeoX config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec("layer", eps=facts.number("layer_norm_eps", 1e-5), bias=True)
    heads = facts.count("num_attention_heads")
    size = facts.head_size(facts.count("hidden_size"), heads)
    rope = facts.rope(size, share=0.25, theta_name="rotary_emb_base", share_name="rotary_pct")
    bias = facts.flag("attention_bias", True)
    layer = pre_norm_layer(
        norm,
        attention=AttentionSpec(
            heads=heads, kv_heads=heads, head_size=size, rope=rope, qkv_bias=bias, out_bias=bias
        ),
        mlp=facts.mlp(activation=facts.activation(default="gelu"), gated=False, bias=True),
        parallel=facts.flag("use_parallel_residual", True),
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=NEOX)


def japanese(hf_config: object) -> DecoderSpec:
    """Return the facts of a GPT-NeoX Japanese config: one bias, after the last attention."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm()
    size = facts.heads()["head_size"]
    rope = facts.rope(size, theta_name="rotary_emb_base", share_name="rotary_pct")
    width = facts.count("hidden_size") * facts.count("intermediate_multiple_size", 4)
    activation = facts.activation(default="gelu")
    last = facts.num_layers() - 1
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(rope=rope, out_bias=index == last),
            mlp=MlpSpec(width=width, activation=activation, gated=False),
        )
        for index in range(last + 1)
    )
    names = replace(
        NEOX,
        embed="gpt_neox_japanese.embed_in",
        final_norm="gpt_neox_japanese.final_layer_norm",
        layer="gpt_neox_japanese.layers.{}",
        rename=((r"\.dense_bias$", ".dense.bias"),),
    )
    return DecoderSpec(**facts.decoder(tied=True), layers=layers, norm=norm, names=names)
