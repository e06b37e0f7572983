"""The decoder of MiniMax M3: an indexer selects blocks of keys in its sparse layers; experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from builtin_plugins.models.mistral import MIXTRAL_NAMES
from core.model_spec.attention import BlockIndexerSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MlpSpec, pre_norm_layer

NAMES: Final = replace(
    MIXTRAL_NAMES,
    shared_gate="block_sparse_moe.shared_experts.gate_proj",
    shared_up="block_sparse_moe.shared_experts.up_proj",
    shared_down="block_sparse_moe.shared_experts.down_proj",
    rename=((r"\.self_attn\.index_([qk])", r".self_attn.indexer.\1"), *MIXTRAL_NAMES.rename),
    ignored=("*mtp.*",),
)


def spec(text_config: Any) -> DecoderSpec:
    """Return the facts of a text config, as transformers reads it."""
    facts = ModelFacts(text_config)
    swiglu = facts.clamped_swiglu()
    norm = facts.norm(offset=1.0)
    heads = facts.heads()
    size = heads["head_size"]
    indexer = BlockIndexerSpec(
        heads=facts.count("index_n_heads"),
        size=facts.count("index_head_dim"),
        block_size=facts.count("index_block_size"),
        top_blocks=facts.count("index_topk_blocks"),
        local_blocks=facts.count("index_local_blocks", least=0),
        norm=norm,
    )
    rope = facts.rope(size, theta=5e6, share=facts.count("rotary_dim", size) / size)
    attention = facts.attention(**heads, rope=rope, qk_norm=norm)
    experts = facts.moe(
        "intermediate_size",
        activation=swiglu,
        score="sigmoid",
        scale=facts.number("routed_scaling_factor"),
        correction_bias=True,
        shared=MlpSpec(width=facts.count("shared_intermediate_size"), activation=swiglu),
    )
    dense = facts.mlp(width=facts.count("dense_intermediate_size"), activation=swiglu)
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=replace(attention, indexer=None if kind == "full_attention" else indexer),
            mlp=experts if mlp == "sparse" else dense,
        )
        for kind, mlp in zip(
            facts.layer_kinds("full_attention", "minimax_m3_sparse") or [],
            facts.required("mlp_layer_types"),
            strict=True,
        )
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
