"""Gemma 3, text: Gemma 2 with norms on query and key heads and rotary positions of their own in windowed layers."""

from core.api import DecoderSpec, Entry, LayerSpec, ModelFacts, NormSpec, WeightNames, hookimpl

NAMES = WeightNames(
    attention_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Gemma3ForCausalLM", "builtin_plugins.models.gemma3:spec", "Gemma 3, text only")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma 3 text config."""
    facts = ModelFacts(hf_config)
    facts.refuse("use_bidirectional_attention")
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6), offset=1.0)
    mlp = facts.mlp(activation=facts.activation("hidden_activation", "gelu_pytorch_tanh"))
    bias = facts.flag("attention_bias")
    size = facts.heads(256)["head_size"]
    full = facts.rope(size, layer_type="full_attention", theta=1e6)
    local = facts.rope(size, layer_type="sliding_attention", theta_name="rope_local_base_freq", scaled=False)
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                **facts.heads(256),
                rope=full if window is None else local,
                scale=facts.number("query_pre_attn_scalar", 256) ** -0.5,
                window=window,
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
        for window in facts.windows(facts.window(4096), full_every=facts.count("sliding_window_pattern", 6))
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=norm,
        embed_scale=facts.count("hidden_size") ** 0.5,
        logit_softcap=facts.number_or_none("final_logit_softcapping"),
        names=NAMES,
    )
