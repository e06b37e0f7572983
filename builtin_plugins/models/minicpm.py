"""MiniCPM 1, 2 and 4, and TeleFLM: Llama with factors on embeddings, residuals and logits."""

import math
from dataclasses import replace

from builtin_plugins.models.llama import equal_layers
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MoeSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.minicpm"
NAMES = WeightNames(expert_gate="w1", expert_up="w3", expert_down="w2")
LIMIT = "sparse_config.dense_len: with more, layers choose blocks of keys, which is not done here"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("MiniCPMForCausalLM", f"{HERE}:minicpm", "MiniCPM 1, 2 and 4"),
        Entry("TeleFLMForCausalLM", f"{HERE}:teleflm", "TeleFLM"),
    ]


def minicpm(hf_config: object) -> DecoderSpec:
    """Return the facts of a MiniCPM config, of a dense model or of one with experts."""
    facts = ModelFacts(hf_config)
    spec = equal_layers(facts, facts.norm(), names=NAMES, tied=True)
    scale = facts.number("scale_depth", 1.0) / math.sqrt(facts.num_layers())
    layer = replace(spec.layers[0], residual_scale=scale)
    if experts := facts.count("num_experts", 0, least=0):
        top_k = facts.count("num_experts_per_tok")
        width = facts.count("intermediate_size")
        layer = replace(layer, mlp=MoeSpec(experts=experts, top_k=top_k, width=width))
    if facts.get("sparse_config"):
        limit = facts.part("sparse_config").count("dense_len", 8192)
        spec = replace(spec, context_limit=limit, limited_by=LIMIT)
    return replace(
        spec,
        layers=(layer,) * facts.num_layers(),
        embed_scale=facts.number("scale_emb", 1.0),
        logit_scale=facts.number("dim_model_base", 1.0) / facts.count("hidden_size"),
    )


def teleflm(hf_config: object) -> DecoderSpec:
    """Return the facts of a TeleFLM config."""
    facts = ModelFacts(hf_config)
    spec = equal_layers(facts, facts.norm())
    if not facts.flag("use_mup"):
        return spec
    scale = facts.number("output_mult", 1.0) / facts.number("mup_scale_factor", 1.0)
    return replace(spec, embed_scale=facts.number("input_mult", 1.0), logit_scale=scale)
