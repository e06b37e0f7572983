"""Dense models with latent attention (MLA): MiniCPM 3 and Youtu-LLM."""

import math

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, latent_attention
from core.model_spec.layer import LayerSpec

HERE = "builtin_plugins.models.latent_dense"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("MiniCPM3ForCausalLM", f"{HERE}:minicpm3", "MiniCPM 3"),
        Entry("YoutuForCausalLM", f"{HERE}:youtu", "Youtu-LLM"),
    ]


def minicpm3(hf_config: object) -> DecoderSpec:
    """Return the facts of a MiniCPM 3 config: embedding, residuals and logits are scaled."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    hidden = facts.count("hidden_size")
    num_layers = facts.num_layers()
    depth = facts.number_or_none("scale_depth", 1.4)
    base = facts.number_or_none("dim_model_base", 256)
    layer = LayerSpec(
        attention=latent_attention(
            facts,
            rope=facts.rope(facts.count("qk_rope_head_dim")),
            value_size=facts.head_size(hidden, facts.count("num_attention_heads")),
        ),
        mlp=facts.mlp(bias=facts.flag("mlp_bias")),
        attention_in=norm,
        mlp_in=norm,
        residual_scale=1.0 if depth is None else depth / math.sqrt(num_layers),
    )
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=(layer,) * num_layers,
        norm=norm,
        embed_scale=facts.number("scale_emb", 12),
        logit_scale=1.0 if base is None else base / hidden,
    )


def youtu(hf_config: object) -> DecoderSpec:
    """Return the facts of a Youtu-LLM config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    rope = facts.rope(
        facts.count("qk_rope_head_dim"), interleaved=facts.flag("rope_interleave", True)
    )
    attention = latent_attention(facts, rope=rope)
    layer = LayerSpec(attention=attention, mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    return DecoderSpec(**facts.decoder(tied=True), layers=(layer,) * facts.num_layers(), norm=norm)
