"""Phi-3, Phi-4 mini, Phi-4 multimodal as text, Phi-3.5-MoE: fused tensors or experts, long RoPE."""

from dataclasses import replace

from builtin_plugins.models.mistral import MIXTRAL_NAMES
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.phi3"
NAMES = WeightNames(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
OTHER_PARTS = ("model.embed_tokens_extend.*", "*.lora_A.*", "*.lora_B.*")
PHI4MM_NAMES = replace(NAMES, rename=((r"\.base_layer\.", "."),), ignored=OTHER_PARTS)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Phi3ForCausalLM", f"{HERE}:phi3", "Phi-3 and Phi-4 mini"),
        Entry("Phi4MMForCausalLM", f"{HERE}:phi4mm", "Phi-4 multimodal's text, as published"),
        Entry("PhimoeForCausalLM", f"{HERE}:phimoe", "Phi-3.5-MoE"),
        Entry("PhiMoEForCausalLM", f"{HERE}:phimoe", "Phi-3.5-MoE"),
    ]


def phi3(hf_config: object) -> DecoderSpec:
    """Return the facts of a Phi-3 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    attention = facts.attention(window=facts.window())
    layer = pre_norm_layer(norm, attention=attention, mlp=facts.mlp())
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=NAMES)


def phi4mm(hf_config: object) -> DecoderSpec:
    """Return the facts of the text part of Phi-4 multimodal."""
    return replace(phi3(hf_config), names=PHI4MM_NAMES)


def phimoe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Phi-3.5-MoE config."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("rms_norm_eps")
    bias = facts.flag("attention_bias")
    experts = facts.moe(
        "intermediate_size",
        defaults=(16, 2),
        score="sparsemixer",
        jitter=facts.number("router_jitter_noise", 0.01),
    )
    rope = facts.rope(facts.heads()["head_size"], theta=1e6)
    attention = facts.attention(rope=rope, window=facts.window(), qkv_bias=bias, out_bias=bias)
    layer = pre_norm_layer(norm, attention=attention, mlp=experts)
    head_bias = facts.flag("lm_head_bias")
    return DecoderSpec(**facts.decoder(layer), norm=norm, head_bias=head_bias, names=MIXTRAL_NAMES)
