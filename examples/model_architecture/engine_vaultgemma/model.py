"""VaultGemma: Gemma 2 without the norms after attention and MLP."""

from __future__ import annotations

from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

EXAMPLE_CONFIG = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 20,
    "sliding_window": 24,
    "max_position_embeddings": 512,
}
"""A tiny config.json for the conformance suite."""
ORACLE = "VaultGemmaForCausalLM"
"""Reference class of transformers."""


def spec(hf_config: object) -> DecoderSpec:
    """Return the model spec. Raises `ModelError` naming a missing or invalid field."""
    facts = ModelFacts(hf_config)
    facts.refuse("use_bidirectional_attention")
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6), offset=1.0)
    bias = facts.flag("attention_bias")
    mlp = facts.mlp(activation=facts.activation("hidden_activation", "gelu_pytorch_tanh"))
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                **facts.heads(256),
                scale=facts.number("query_pre_attn_scalar", 256) ** -0.5,
                window=window,
                softcap=facts.number_or_none("attn_logit_softcapping", 50.0),
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp=mlp,
            attention_in=norm,
            mlp_in=norm,
        )
        for window in facts.windows(facts.window(4096), full_every=2)
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=norm,
        embed_scale=facts.count("hidden_size") ** 0.5,
        logit_softcap=facts.number_or_none("final_logit_softcapping", 30.0),
        names=WeightNames(mlp_in="pre_feedforward_layernorm"),
    )
