"""GLM 4: Llama with fused gate and up, and interleaved RoPE on half of each head; later with more
norms.
"""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.glm"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("GlmForCausalLM", f"{HERE}:glm", "GLM 4 and Edge"),
        Entry("Glm4ForCausalLM", f"{HERE}:glm4", "GLM 4 0414 and Z1"),
    ]


def glm(hf_config: object) -> DecoderSpec:
    """Return the facts of a GLM config."""
    return _alike(ModelFacts(hf_config), None, WeightNames(gate_up="mlp.gate_up_proj"))


def glm4(hf_config: object) -> DecoderSpec:
    """Return the facts of a GLM 4 0414 config: norms after each sublayer, too."""
    facts = ModelFacts(hf_config)
    names = WeightNames(
        gate_up="mlp.gate_up_proj",
        attention_out="post_self_attn_layernorm",
        mlp_out="post_mlp_layernorm",
    )
    return _alike(facts, facts.norm(eps=1.5625e-7), names)


def _alike(facts: ModelFacts, after: NormSpec | None, names: WeightNames) -> DecoderSpec:
    norm = facts.norm(eps=1.5625e-7)
    heads = facts.heads(128)
    rope = facts.rope(heads["head_size"], share=0.5, interleaved=True)
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(**heads, rope=rope, qkv_bias=facts.flag("attention_bias", True)),
        mlp=facts.mlp(),
        attention_out=after,
        mlp_out=after,
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=names)
