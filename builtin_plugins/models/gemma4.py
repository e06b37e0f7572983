"""Gemma 4, text: keys as values, keys of earlier layers, embeddings for each layer, experts beside
the MLP.
"""

from typing import Any

from core.api import (
    BesideSpec,
    DecoderSpec,
    Entry,
    LayerInputSpec,
    LayerSpec,
    ModelError,
    ModelFacts,
    MoeSpec,
    NormSpec,
    ProportionalScaling,
    RopeSpec,
    WeightNames,
    hookimpl,
)

NAMES = WeightNames(
    attention_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
    router="router.proj",
    expert="",
    experts_gate_up="experts.gate_up_proj",
    experts_down="experts.down_proj",
    rename=((r"\.router\.scale$", ".router.norm.weight"),),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Gemma4ForCausalLM", "builtin_plugins.models.gemma4:spec", "Gemma 4, text only")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma 4 text config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    scaling = NormSpec(eps=facts.number("rms_norm_eps", 1e-6), weight=False)
    activation = facts.activation("hidden_activation", "gelu_pytorch_tanh")
    windows = [*facts.windows(facts.window(512), full_every=6)[:-1], None]
    first_shared = len(windows) - facts.count("num_kv_shared_layers", 0, least=0)
    doubled = facts.flag("use_double_wide_mlp")
    width = facts.count("intermediate_size")
    beside = _beside(facts, norm, activation) if facts.flag("enable_moe_block") else None
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                **_heads(facts, i, window),
                scale=1.0,
                window=window,
                qk_norm=norm,
                v_norm=scaling,
                key_is_value=window is None and facts.flag("attention_k_eq_v"),
                shares=_source(windows[:first_shared], window) if i >= first_shared else None,
                qkv_bias=facts.flag("attention_bias"),
                out_bias=facts.flag("attention_bias"),
            ),
            mlp=facts.mlp(
                activation=activation, width=width * 2 if doubled and i >= first_shared else width
            ),
            beside=beside,
            attention_in=norm,
            attention_out=norm,
            mlp_in=norm,
            mlp_out=norm,
            scaled=True,
        )
        for i, window in enumerate(windows)
    )
    size = facts.count("hidden_size_per_layer_input", 256, least=0)
    own_vocab = facts.count("vocab_size_per_layer_input", 262_144)
    inputs = LayerInputSpec(size=size, vocab_size=own_vocab, activation=activation, norm=norm)
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=norm,
        embed_scale=facts.count("hidden_size") ** 0.5,
        layer_inputs=inputs if size else None,
        logit_softcap=facts.number_or_none("final_logit_softcapping"),
        names=NAMES,
    )


def _source(windows: list[int | None], window: int | None) -> int:
    """Return the last of the layers with own keys that sees as far."""
    found = [i for i, other in enumerate(windows) if other == window]
    if not found:
        raise ModelError(
            "num_kv_shared_layers in config.json leaves no layer with keys that the others could "
            "use."
        )
    return found[-1]


def _heads(facts: ModelFacts, index: int, window: int | None) -> dict[str, Any]:
    """Return the heads and positions of a layer: full ones may be larger, which config files state
    in two ways.
    """
    own = facts.part("per_layer_config").part(str(index))
    size = facts.count("head_dim", 256)
    kv_heads = facts.count("num_key_value_heads")
    if window is None and facts.get("per_layer_config") is None:
        size = facts.count("global_head_dim", 512)
        if facts.flag("attention_k_eq_v"):
            kv_heads = facts.count("num_global_key_value_heads", kv_heads)
    size = own.count("head_dim", size)
    kv_heads = own.count("num_key_value_heads", kv_heads)
    kind = "full_attention" if window is None else "sliding_attention"
    rope = facts.rope(size, layer_type=kind)
    if window is None and facts.get("rope_parameters") is None:
        rope = RopeSpec(size=size, theta=1e6, scaling=ProportionalScaling(0.25, 1.0))
    return {
        "heads": facts.count("num_attention_heads"),
        "kv_heads": kv_heads,
        "head_size": size,
        "rope": rope,
    }


def _beside(facts: ModelFacts, norm: NormSpec, activation: str) -> BesideSpec:
    """Return the experts; their router reads the stream, normalised and scaled."""
    moe = MoeSpec(
        experts=facts.count("num_experts"),
        top_k=facts.count("top_k_experts"),
        width=facts.count("moe_intermediate_size"),
        activation=activation,
        router_norm=norm,
        router_scale=facts.count("hidden_size") ** -0.5,
        expert_scale=True,
    )
    return BesideSpec(moe=moe, norm=norm)
