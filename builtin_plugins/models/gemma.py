"""Gemma 1 to 3, text: scaled embeddings, norms with an offset of 1, the tanh gate."""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.pooling import PoolingSpec

HERE = "builtin_plugins.models.gemma"
BARE = ((r"^(?!model\.)(embed_tokens|layers|norm)\.", r"model.\1."),)
"""Rename for checkpoints of the bare model, which omit the prefix."""
NAMES = WeightNames(
    attention_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GemmaForCausalLM", f"{HERE}:gemma", "Gemma 1 and CodeGemma"),
        Entry("Gemma2ForCausalLM", f"{HERE}:gemma2", "Gemma 2"),
        Entry("Gemma3ForCausalLM", f"{HERE}:gemma3", "Gemma 3, text only"),
        Entry("Gemma3TextModel", f"{HERE}:embedding", "Gemma 3 for embeddings"),
    ]


def gemma(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma config."""
    facts = ModelFacts(hf_config)
    facts.refuse("use_bidirectional_attention")
    norm = facts.norm(offset=1.0)
    bias = facts.flag("attention_bias")
    activation = facts.activation(default="gelu_pytorch_tanh")
    heads = facts.heads(256)
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(**heads, qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(activation="gelu_tanh" if activation == "gelu" else activation),
    )
    scale = facts.count("hidden_size") ** 0.5
    return DecoderSpec(**facts.decoder(layer, tied=True), norm=norm, embed_scale=scale)


def gemma2(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma 2 config."""
    facts = ModelFacts(hf_config)
    facts.refuse("use_bidirectional_attention")
    norm = facts.norm(offset=1.0)
    mlp = facts.mlp(activation=facts.activation("hidden_activation", "gelu_pytorch_tanh"))
    bias = facts.flag("attention_bias")
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                **facts.heads(256),
                scale=facts.number("query_pre_attn_scalar", 256) ** -0.5,
                softcap=facts.number_or_none("attn_logit_softcapping", 50.0),
                window=window,
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp=mlp,
            attention_out=norm,
            mlp_out=norm,
        )
        for window in facts.windows(facts.window(4096), full_every=2)
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=norm,
        embed_scale=facts.count("hidden_size") ** 0.5,
        logit_softcap=facts.number_or_none("final_logit_softcapping", 30.0),
        names=NAMES,
    )


def gemma3(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma 3 text config."""
    facts = ModelFacts(hf_config)
    both = facts.flag("use_bidirectional_attention")
    window = facts.window(4096)
    if both and window is not None:
        window = window // 2 + 1  # stated for both sides together
    norm = facts.norm(offset=1.0)
    mlp = facts.mlp(activation=facts.activation("hidden_activation", "gelu_pytorch_tanh"))
    bias = facts.flag("attention_bias")
    size = facts.heads(256)["head_size"]
    full = facts.rope(size, layer_type="full_attention", theta=1e6)
    local = facts.rope(
        size, layer_type="sliding_attention", theta_name="rope_local_base_freq", scaled=False
    )
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                **facts.heads(256),
                rope=full if layer_window is None else local,
                scale=facts.number("query_pre_attn_scalar", 256) ** -0.5,
                window=layer_window,
                causal=not both,
                qk_norm=norm,
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp=mlp,
            attention_out=norm,
            mlp_out=norm,
        )
        for layer_window in facts.windows(
            window, full_every=facts.count("sliding_window_pattern", 6)
        )
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=norm,
        embed_scale=facts.count("hidden_size") ** 0.5,
        logit_softcap=facts.number_or_none("final_logit_softcapping"),
        names=NAMES,
    )


def embedding(hf_config: object) -> DecoderSpec:
    """Return the facts of a model without a head, such as EmbeddingGemma."""
    return replace(
        gemma3(hf_config), pooling=PoolingSpec(pooler="mean"), names=replace(NAMES, rename=BARE)
    )
