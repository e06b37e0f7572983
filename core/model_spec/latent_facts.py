"""Latent attention (MLA), its indexers and the experts next to it, read from DeepSeek's fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.errors import ModelError
from core.model_spec.attention import IndexerSpec, LatentAttentionSpec, NormSpec
from core.model_spec.config_fields import items_of
from core.model_spec.decoder import DecoderSpec, mtp_layer
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames


def latent_attention(facts: ModelFacts, **changes: Any) -> LatentAttentionSpec:
    """Return latent attention (MLA) with the config's sizes, changed by `changes`.

    By default the shared key has interleaved RoPE. `value_size` is the default of v_head_dim.
    """
    key = facts.count("qk_nope_head_dim")
    shared = facts.count("qk_rope_head_dim")
    plain_queries = facts.get("q_lora_rank", "absent") is None
    if "rope" not in changes:
        changes["rope"] = facts.rope(shared, interleaved=True)
    found: dict[str, Any] = {
        "heads": facts.count("num_attention_heads"),
        "key_size": key,
        "shared_size": shared,
        "value_size": facts.count("v_head_dim", changes.pop("value_size", None)),
        "rank": facts.count("kv_lora_rank"),
        "query_rank": None if plain_queries else facts.count("q_lora_rank"),
        "norm": NormSpec(),  # its epsilon is in no config
        "scale": (key + shared) ** -0.5 * _yarn_score_factor(facts),
        "bias": facts.flag("attention_bias"),
    }
    return LatentAttentionSpec(**{**found, **changes})


def _yarn_score_factor(facts: ModelFacts) -> float:
    """Return YaRN's factor on the attention scores (mscale_all_dim)."""
    given = facts.part("rope_parameters" if facts.get("rope_parameters") else "rope_scaling")
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default" or not given.get("mscale_all_dim"):
        return 1.0
    factor = given.number("factor")
    return (
        1.0 if factor <= 1 else (0.1 * given.number("mscale_all_dim") * math.log(factor) + 1.0) ** 2
    )


def latent_experts(
    facts: ModelFacts, *, groups: tuple[int, int] = (1, 1), **changes: Any
) -> MoeSpec:
    """Return the experts of a config, changed by `changes`; `groups` is the default."""
    width = facts.count("moe_intermediate_size")
    found: dict[str, Any] = {
        "experts": facts.count("n_routed_experts"),
        "top_k": facts.count("num_experts_per_tok"),
        "width": width,
        "activation": facts.activation(),
        "score": "sigmoid",
        "renormalize": facts.flag("norm_topk_prob", True),
        "scale": facts.number("routed_scaling_factor"),
        "correction_bias": True,
        "groups": facts.count("n_group", groups[0]),
        "topk_groups": facts.count("topk_group", groups[1]),
        "router_fp32": True,
        "shared": MlpSpec(
            width=width * facts.count("n_shared_experts"), activation=facts.activation()
        ),
    }
    return MoeSpec(**{**found, **changes})


def latent_decoder(
    facts: ModelFacts,
    attention: LatentAttentionSpec,
    experts: MoeSpec,
    *,
    dense: int,
    dense_name: str = "first_k_dense_replace",
    every: int = 1,
    eps: float = 1e-6,
    mlp_bias: bool = False,
) -> DecoderSpec:
    """Return a decoder with dense first layers, and with its MTP layer."""
    norm = facts.norm(eps=eps)
    num_layers = facts.num_layers()
    dense = facts.count(dense_name, dense, least=0) if dense_name else dense
    kinds = facts.get("mlp_layer_types")
    if kinds is None:
        kinds = ["sparse" if i >= dense and i % every == 0 else "dense" for i in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {"dense", "sparse"}:
        raise ModelError(
            f"mlp_layer_types in config.json must name dense or sparse for each of {num_layers} "
            "layers."
        )
    mlps = {"dense": facts.mlp(bias=mlp_bias), "sparse": experts}
    layers = tuple(pre_norm_layer(norm, attention=attention, mlp=mlps[kind]) for kind in kinds)
    names = WeightNames(ignored=("*.rotary_emb.inv_freq", f"model.layers.{num_layers}.*"))
    further = pre_norm_layer(norm, attention=attention, mlp=experts)
    has_mtp = facts.count("num_nextn_predict_layers", 0, least=0) > 0
    mtp = mtp_layer(further, norm, num_layers) if has_mtp else None
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, mtp=mtp, names=names)


def indexer_spec(facts: ModelFacts, *, heads: int, interleaved: bool) -> IndexerSpec:
    """Return the indexer of a config; `heads` is the default."""
    return IndexerSpec(
        top_k=facts.count("index_topk", 2048),
        heads=facts.count("index_n_heads", heads),
        size=facts.count("index_head_dim", 128),
        interleaved=interleaved,
    )


def shared_indexers(
    facts: ModelFacts, indexer: IndexerSpec, num_layers: int, *, every: int = 1
) -> list[IndexerSpec]:
    """Return the indexer of each layer; some layers attend to what an earlier one selected."""
    kinds = facts.get("indexer_types") or facts.get("index_topk_pattern")
    if kinds is None:
        every = facts.count("index_topk_freq", every)
        offset = facts.count("index_skip_topk_offset", 2, least=0)
        kinds = [
            "full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(num_layers)
        ]
    kinds = [{"F": "full", "S": "shared"}.get(str(kind), str(kind)) for kind in kinds]
    if len(kinds) != num_layers or not set(kinds) <= {"full", "shared"} or kinds[0] != "full":
        raise ModelError(
            f"indexer_types in config.json: got {kinds!r:.100}; expected full or shared for each "
            f"of {num_layers} layers, full for the first. Restore the model's own config.json."
        )
    indexers: list[IndexerSpec] = []
    source = 0
    for index, kind in enumerate(kinds):
        source = index if kind == "full" else source
        own = None if kind == "full" else source
        indexers.append(replace(indexer, source_layer=own))
    return indexers


def latent_sources(facts: ModelFacts, kinds: Sequence[bool]) -> list[int | None]:
    """Return the earlier layer that owns the latents of each layer (`kv_source_layers`).

    None: the layer itself. Layers that share latents are of one of `kinds`.
    """
    name = "kv_source_layers"
    stated = items_of(name, facts.get(name) or list(range(len(kinds))))
    is_valid = len(stated) == len(kinds) and all(
        type(source) is int
        and 0 <= source <= index
        and stated[source] == source
        and kinds[source] == kinds[index]
        for index, source in enumerate(stated)
    )
    if not is_valid:
        raise ModelError(
            f"{name} in config.json: got {stated!r:.100}; expected for each of {len(kinds)} layers "
            "its own index, or that of an earlier one with latents of its own, both with or "
            "without RoPE. Restore the model's own config.json."
        )
    return [None if source == index else source for index, source in enumerate(stated)]


def with_indexers(spec: DecoderSpec, indexers: Sequence[IndexerSpec | None]) -> DecoderSpec:
    """Return the decoder with its layers' indexers; its MTP layer attends to all tokens."""
    attentions: list[Any] = [layer.attention for layer in spec.layers]
    layers = tuple(
        replace(layer, attention=replace(attention, indexer=indexer))
        for layer, attention, indexer in zip(spec.layers, attentions, indexers, strict=True)
    )
    mtp = spec.mtp
    if mtp is not None:
        mtp = replace(mtp, ignored=(*mtp.ignored, f"{mtp.stored}.self_attn.indexer.*"))
    return replace(spec, layers=layers, mtp=mtp)
