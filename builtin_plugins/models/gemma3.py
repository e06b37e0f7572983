"""Gemma 3, text: Gemma 2 with QK norms and separate RoPE of sliding-window layers."""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames
from core.model_spec.pooling import PoolingSpec

HERE = "builtin_plugins.models.gemma3"
BARE = ((r"^(?!model\.)(embed_tokens|layers|norm)\.", r"model.\1."),)
"""Rename for checkpoints of the bare model, which omit the prefix."""
NAMES = WeightNames(
    attention_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("Gemma3ForCausalLM", f"{HERE}:spec", "Gemma 3, text only"),
        Entry("Gemma3TextModel", f"{HERE}:embedding", "Gemma 3 for embeddings"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma 3 text config."""
    facts = ModelFacts(hf_config)
    both = facts.flag("use_bidirectional_attention")
    window = facts.window(4096)
    if both and window is not None:
        window = window // 2 + 1  # stated for both sides together
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6), offset=1.0)
    mlp = facts.mlp(activation=facts.activation("hidden_activation", "gelu_pytorch_tanh"))
    bias = facts.flag("attention_bias")
    size = facts.heads(256)["head_size"]
    full = facts.rope(size, layer_type="full_attention", theta=1e6)
    local = facts.rope(
        size, layer_type="sliding_attention", theta_name="rope_local_base_freq", scaled=False
    )
    layers = tuple(
        LayerSpec(
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
            attention_in=norm,
            attention_out=norm,
            mlp_in=norm,
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
        spec(hf_config), pooling=PoolingSpec(pooler="mean"), names=replace(NAMES, rename=BARE)
    )
