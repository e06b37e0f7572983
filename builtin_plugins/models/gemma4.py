"""Gemma 4, text: shared keys and values, per-layer embeddings, experts parallel to the MLP."""

from typing import Any

from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.composite import text_part
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.layer import MoeSpec, ParallelExpertsSpec, PerLayerInputSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.rope import ProportionalScaling, RopeSpec

HERE = "builtin_plugins.models.gemma4"
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
    """Return the architectures."""
    return [
        Entry("Gemma4ForCausalLM", f"{HERE}:spec", "Gemma 4, text only"),
        Entry("Gemma4UnifiedForCausalLM", f"{HERE}:unified", "Gemma 4 Unified, text only"),
        Entry("Gemma4UnifiedForConditionalGeneration", f"{HERE}:composite", "its text alone"),
    ]


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
    parallel = (
        _parallel_experts(facts, norm, activation) if facts.flag("enable_moe_block") else None
    )
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                **_heads(facts, i, window),
                scale=1.0,
                window=window,
                qk_norm=norm,
                v_norm=scaling,
                key_is_value=window is None and facts.flag("attention_k_eq_v"),
                kv_source_layer=_source(windows, first_shared, i),
                qkv_bias=facts.flag("attention_bias"),
                out_bias=facts.flag("attention_bias"),
            ),
            mlp=facts.mlp(
                activation=activation, width=width * 2 if doubled and i >= first_shared else width
            ),
            parallel_experts=parallel,
            attention_out=norm,
            mlp_out=norm,
            scaled=True,
        )
        for i, window in enumerate(windows)
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=norm,
        embed_scale=facts.count("hidden_size") ** 0.5,
        per_layer_inputs=_per_layer_inputs(facts, norm, activation),
        logit_softcap=facts.number_or_none("final_logit_softcapping"),
        names=NAMES,
    )


def unified(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma 4 Unified text config: layers have no embeddings of their own."""
    window = ModelFacts(hf_config).window(1024)
    return spec(with_fields(hf_config, hidden_size_per_layer_input=0, sliding_window=window))


def composite(hf_config: object) -> DecoderSpec:
    """Return the text part of Gemma 4 Unified; its image processor needs torchvision."""
    towers = ("model.embed_vision.*", "model.embed_audio.*", "model.vision_embedder.*")
    return text_part(hf_config, unified, *towers)


def _source(windows: list[int | None], first_shared: int, index: int) -> int | None:
    """Return the last layer with its own KV and the same kind of attention as a sharing layer.

    None: the layer has its own KV.
    """
    if index < first_shared:
        return None
    window = windows[index]
    found = [i for i, other in enumerate(windows[:first_shared]) if other == window]
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


def _per_layer_inputs(
    facts: ModelFacts, norm: NormSpec, activation: str
) -> PerLayerInputSpec | None:
    """Return the embeddings of each layer; None: the model has none."""
    size = facts.count("hidden_size_per_layer_input", 256, least=0)
    vocab_size = facts.count("vocab_size_per_layer_input", 262_144)
    if not size:
        return None
    return PerLayerInputSpec(
        size=size,
        vocab_size=vocab_size,
        activation=activation,
        norm=norm,
        padding_token=facts.count("pad_token_id", 0, least=0),
    )


def _parallel_experts(facts: ModelFacts, norm: NormSpec, activation: str) -> ParallelExpertsSpec:
    """Return the experts; their router reads the normalised and scaled residual stream."""
    moe = MoeSpec(
        experts=facts.count("num_experts"),
        top_k=facts.count("top_k_experts"),
        width=facts.count("moe_intermediate_size"),
        activation=activation,
        router_norm=norm,
        router_scale=facts.count("hidden_size") ** -0.5,
        expert_scale=True,
    )
    return ParallelExpertsSpec(moe=moe, norm=norm)
