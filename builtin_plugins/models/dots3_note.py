"""Dots 3 Note's text model: latent attention, sparse in some layers and windowed in the others."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from core.model_spec.attention import LatentAttentionSpec
from core.model_spec.composite import text_part
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.latent_facts import (
    indexer_spec,
    latent_attention,
    latent_decoder,
    latent_experts,
    with_indexers,
)
from core.model_spec.layer import MlpSpec

INDEXED: Final = ("indexed_attention", "full_attention")
"""Kinds of the layers with an indexer; published configs have the second name."""
WINDOWED: Final = "sliding_attention"
WINDOWED_FIELDS: Final = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""Fields of windowed layers, with their defaults; published configs have them after `swa_`."""


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Dots 3 Note text config, published or saved by transformers."""
    facts = ModelFacts(hf_config)
    stated = vars(hf_config)
    num_layers = facts.num_layers()
    kinds = facts.layer_kinds(*INDEXED, WINDOWED) or [
        WINDOWED if i >= 2 and i % 4 != 1 else INDEXED[0] for i in range(num_layers)
    ]
    shared = facts.count("shared_experts_intermediate_size", 1536)
    shared = facts.count("moe_shared_expert_intermediate_size", shared)
    width = shared * facts.count("n_shared_experts", 1)
    experts = latent_experts(facts, shared=MlpSpec(width=width, activation=facts.activation()))
    attentions = [
        _attention({**stated, **_own(stated, i, kinds[i])}, kinds[i]) for i in range(num_layers)
    ]
    decoder = latent_decoder(facts, attentions[0], experts, dense=1, eps=1e-5)
    layers = tuple(
        replace(layer, attention=attention)
        for layer, attention in zip(decoder.layers, attentions, strict=True)
    )
    names = replace(
        decoder.names,
        attention_gate="self_attn.g_proj",
        ignored=(*decoder.names.ignored, "model.mtp.*"),
    )
    indexer = indexer_spec(facts, heads=64, interleaved=True)
    indexers = [None if kind == WINDOWED else indexer for kind in kinds]
    return with_indexers(replace(decoder, layers=layers, names=names, mtp=None), indexers)


def composite(hf_config: object) -> DecoderSpec:
    """Return the text part of Dots 3 Note."""
    return text_part(hf_config, spec, "*vision_encoder.*", "*audio_encoder.*", "*audio_adapter.*")


def _own(stated: Mapping[str, Any], index: int, kind: str) -> Mapping[str, Any]:
    """Return the fields that a layer does not have in common with the others."""
    by_layer = stated.get("per_layer_config")
    if isinstance(by_layer, Mapping):
        own: Mapping[str, Any] = by_layer.get(str(index), by_layer.get(index, {}))
        return own
    if kind != WINDOWED:
        return {}
    fields = {name: stated.get(f"swa_{name}", default) for name, default in WINDOWED_FIELDS.items()}
    rotated = fields["head_dim"] - fields["qk_nope_head_dim"]
    return {**fields, "qk_rope_head_dim": stated.get("swa_qk_rope_head_dim", rotated)}


def _attention(fields: Mapping[str, Any], kind: str) -> LatentAttentionSpec:
    """Return the attention of a layer with these fields."""
    given = fields.get("rope_parameters")
    parameters = given if isinstance(given, Mapping) else {}
    parameters = {**parameters.get(kind, parameters), "partial_rotary_factor": 1.0}
    facts = ModelFacts(SimpleNamespace(**{**fields, "rope_parameters": parameters}))
    hidden = facts.count("hidden_size")
    size = facts.count("qk_rope_head_dim")
    windowed = kind == WINDOWED
    window = facts.window(facts.count("sliding_window_size", 512)) if windowed else None
    rope = facts.rope(
        size,
        theta=50_000.0 if windowed else 80_000_000.0,
        theta_name="swa_rope_theta" if windowed else "rope_theta",
        interleaved=True,
    )
    return latent_attention(
        facts,
        rope=rope,
        scale=(facts.count("qk_nope_head_dim") + size) ** -0.5,
        norm=facts.norm(eps=1e-5),
        window=window,
        shared_norm=True,
        query_scale=(hidden / facts.count("q_lora_rank")) ** 0.5,
        latent_scale=(hidden / facts.count("kv_lora_rank")) ** 0.5,
        gate=True,
    )
