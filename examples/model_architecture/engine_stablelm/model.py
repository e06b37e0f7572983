"""StableLM: layer norms, a quarter of each head turned, and in larger models attention and MLP side by side."""

from __future__ import annotations

from core.api import DecoderSpec, LayerSpec, ModelFacts, NormSpec

EXAMPLE_CONFIG = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "use_qkv_bias": True,
}
"""A tiny config.json, with which the conformance suite builds and runs the model."""


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts. Raises `ModelError` naming a field that is missing or cannot work."""
    facts = ModelFacts(hf_config)
    facts.refuse("qk_layernorm")
    norm = NormSpec(kind="layer", eps=facts.get("layer_norm_eps", 1e-5), bias=True)
    parallel = bool(facts.get("use_parallel_residual", False))
    rope = facts.rope(facts.heads()["head_size"], share=0.25)
    layer = LayerSpec(
        attention=facts.attention(rope=rope, qkv_bias=bool(facts.get("use_qkv_bias", False))),
        mlp=facts.mlp(),
        attention_in=norm,
        mlp_in=None if parallel else norm,
        parallel=parallel,
    )
    return DecoderSpec(**facts.decoder(), layers=(layer,) * facts.count("num_hidden_layers"), norm=norm)
