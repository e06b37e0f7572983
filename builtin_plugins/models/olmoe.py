"""OLMoE and FlexOlmo: OLMo with mixtures of experts, norms over all query and all key heads."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.olmoe"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("OlmoeForCausalLM", f"{HERE}:olmoe", "OLMoE"),
        Entry("FlexOlmoForCausalLM", f"{HERE}:flex_olmo", "FlexOlmo"),
    ]


def _experts(facts: ModelFacts) -> MoeSpec:
    return MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts")),
        top_k=facts.count("num_experts_per_tok"),
        width=facts.count("intermediate_size"),
        activation=facts.activation(),
        renormalize=facts.flag("norm_topk_prob"),
    )


def olmoe(hf_config: object) -> DecoderSpec:
    """Return the facts of an OLMoE config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    clip = facts.number_or_none("clip_qkv")
    attention = facts.attention(
        qk_norm=norm, qk_norm_over="all", clip_qkv=clip, qkv_bias=bias, out_bias=bias
    )
    layer = LayerSpec(attention=attention, mlp=_experts(facts), attention_in=norm, mlp_in=norm)
    return DecoderSpec(**facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm)


def flex_olmo(hf_config: object) -> DecoderSpec:
    """Return the facts of a FlexOlmo config: norms after each sublayer."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    rope = facts.rope(facts.heads()["head_size"], theta=5e5)
    attention = facts.attention(
        rope=rope, qk_norm=norm, qk_norm_over="all", qkv_bias=bias, out_bias=bias
    )
    layer = LayerSpec(attention=attention, mlp=_experts(facts), attention_out=norm, mlp_out=norm)
    names = WeightNames(
        attention_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm"
    )
    return DecoderSpec(
        **facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm, names=names
    )
