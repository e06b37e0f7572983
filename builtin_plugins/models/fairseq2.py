"""Llama in the checkpoints of fairseq2: other names, and interleaved RoPE."""

from builtin_plugins.models.llama import equal_layers
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    embed="decoder_frontend.embed",
    final_norm="decoder.layer_norm",
    head="final_proj",
    layer="decoder.layers.{}",
    attention_in="self_attn_layer_norm",
    o="self_attn.output_proj",
    mlp_in="ffn_layer_norm",
    gate="ffn.gate_proj",
    up="ffn.inner_proj",
    down="ffn.output_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    target = "builtin_plugins.models.fairseq2:spec"
    return [Entry("Fairseq2LlamaForCausalLM", target, "Llama in fairseq2's checkpoints")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Llama config."""
    facts = ModelFacts(hf_config)
    rope = facts.rope(facts.heads()["head_size"], interleaved=True)
    return equal_layers(facts, facts.norm(), names=NAMES, rope=rope)
