"""Mistral Large 4's text: sparse latent attention, with latents that layers share."""

from dataclasses import replace

from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, with_fields
from core.model_spec.latent_facts import (
    indexer_spec,
    latent_attention,
    latent_decoder,
    latent_experts,
    latent_sources,
    shared_indexers,
    with_indexers,
)
from core.model_spec.mistral_names import RENAMES


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mistral Large 4 text config: some layers have no RoPE, and some read
    the latents of an earlier one.
    """
    facts = ModelFacts(with_fields(hf_config, q_lora_rank=None))
    facts.required("rope_parameters")
    rope = facts.rope(facts.count("qk_rope_head_dim"), interleaved=True)
    norm = facts.norm(eps=1e-5)
    rotated = latent_attention(facts, rope=replace(rope, learned=True), norm=norm, log_scaling=True)
    size = rotated.key_size + rotated.shared_size
    plain = replace(rotated, key_size=size, shared_size=0, rope=None)
    every = facts.count("no_rope_layer_interval", 4)
    switches = facts.switches("no_rope_layers", off_every=every)
    attentions = [
        replace(rotated if uses_rope else plain, kv_source_layer=source)
        for uses_rope, source in zip(switches, latent_sources(facts, switches), strict=True)
    ]
    experts = latent_experts(facts, score="softmax", correction_bias=False, renormalize=True)
    decoder = latent_decoder(facts, rotated, experts, dense=1, eps=1e-5)
    both = zip(decoder.layers, attentions, strict=True)
    layers = tuple(replace(layer, attention=attention) for layer, attention in both)
    softcap = facts.number("final_logit_softcapping", 30.0)
    names = replace(decoder.names, rename=RENAMES)
    decoder = replace(decoder, layers=layers, logit_softcap=softcap, names=names)
    indexer = indexer_spec(facts, heads=32, interleaved=True)
    indexer = replace(indexer, reads_input=True, log_scaling=True)
    return with_indexers(decoder, shared_indexers(facts, indexer, len(layers)))
