"""Gemma 2: norms around both sublayers, softcaps on scores and logits, alternating windows."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    attention_out="post_attention_layernorm",
    mlp_in="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Gemma2ForCausalLM", "builtin_plugins.models.gemma2:spec", "Gemma 2")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Gemma 2 config."""
    facts = ModelFacts(hf_config)
    facts.refuse("use_bidirectional_attention")
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6), offset=1.0)
    mlp = facts.mlp(activation=facts.activation("hidden_activation", "gelu_pytorch_tanh"))
    bias = facts.flag("attention_bias")
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                **facts.heads(256),
                scale=facts.number("query_pre_attn_scalar", 256) ** -0.5,
                softcap=facts.number_or_none("attn_logit_softcapping", 50.0),
                window=window,
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp=mlp,
            attention_in=norm,
            attention_out=norm,
            mlp_in=norm,
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
