"""A tiny config of any architecture of transformers: the fields that configs usually size a model
by, made small.

`core.testing.tiny_configs` has hand-made forms with every particular feature on; this is for all
others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import transformers

from core.testing.tiny_configs import VOCAB, WINDOW

LAYERS: Final = 4

_SIZES: Final = (
    (VOCAB, "vocab_size vocab_size_per_layer_input unpadded_vocab_size"),
    (512, "max_position_embeddings n_positions max_seq_len n_ctx"),
    (
        64,
        "hidden_size d_model n_embd decoder_hidden_size embedding_size backbone_hidden_size dim "
        "input_embedding_size output_embedding_size",
    ),
    (
        96,
        "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim dff intermediate_size_mlp "
        "ffn_hidden_size "
        "dense_intermediate_size dim_ff",
    ),
    (LAYERS, "num_hidden_layers n_layer n_layers decoder_layers encoder_layers"),
    (
        4,
        "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads "
        "num_experts "
        "num_local_experts moe_num_experts attention_heads swa_num_attention_heads "
        "kv_channels linear_num_value_heads linear_num_heads mamba_n_heads n_mamba_heads "
        "index_n_heads "
        "zero_expert_num",
    ),
    (
        2,
        "num_key_value_heads num_experts_per_tok moe_topk moe_k top_k_experts n_group topk_group "
        "num_kv_heads "
        "swa_num_key_value_heads linear_num_key_heads num_layers num_kv_shared_layers "
        "n_shared_experts "
        "num_shared_experts moe_num_shared_experts num_codebooks",
    ),
    (
        16,
        "head_dim v_head_dim qk_nope_head_dim kv_lora_rank swa_head_dim index_head_dim "
        "linear_key_head_dim "
        "linear_value_head_dim linear_head_dim attention_head_size laurel_rank "
        "hidden_size_per_layer_input "
        "mamba_d_state state_size ssm_state_size gated_norm_rank dim_head",
    ),
    (
        WINDOW,
        "sliding_window sliding_window_size attention_chunk_size q_lora_rank window_size "
        "local_attention "
        "attention_window_size index_topk",
    ),
    (
        32,
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
        "expert_ffn_hidden_size shared_experts_intermediate_size prefix_dense_intermediate_size",
    ),
    (8, "qk_rope_head_dim rotary_dim n_routed_experts"),
    (1, "first_k_dense_replace num_dense_layers"),
)
_SMALL: Final = {name: size for size, names in _SIZES for name in names.split()}
_NONE_MEANS_NONE: Final = frozenset(
    (
        "q_lora_rank",
        "sliding_window",
        "n_group",
        "topk_group",
        "shared_intermediate_size",
        "intermediate_size_mlp",
    )
)
"""Fields that are absent by design, not sizes to derive."""
_PLAIN: Final[Mapping[str, Any]] = {
    "tie_word_embeddings": False,
    "bos_token_id": VOCAB - 3,
    "eos_token_id": VOCAB - 1,
    "is_decoder": True,
    "layer_types": None,
}
_ROPE: Final = {"rope_type": "default", "rope_theta": 10000.0}
_FORMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "cohere_compass_text": {
        "rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _ROPE)
    },
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "gemma4_text": {"num_kv_shared_layers": 0},
    "gemma4_unified_text": {"num_kv_shared_layers": 0},
    "zaya": {"num_experts_per_tok": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16},
}
"""What cannot be derived from the names of a type's fields."""


def shrunken(config_class: Any, **fields: Any) -> dict[str, Any]:
    """Return the arguments that make a tiny config of a class; `fields` have the last word."""
    known = {field.name: field for field in dataclasses.fields(config_class) if field.init}
    made: dict[str, Any] = {name: value for name, value in _PLAIN.items() if name in known}
    if "pad_token_id" in known:
        made["pad_token_id"] = None if known["pad_token_id"].default is None else VOCAB - 2
    for name, size in _SMALL.items():
        if name in known and not (name in _NONE_MEANS_NONE and known[name].default is None):
            made[name] = size
    if {"qk_rope_head_dim", "head_dim"} <= set(
        known
    ):  # the part that turns is all there is to see of a head
        made["head_dim"] = made["qk_rope_head_dim"]
    if "kv_lora_rank" in known:
        made["num_key_value_heads"] = made["num_attention_heads"]
    parts = config_class() if getattr(config_class, "sub_configs", None) else None
    for name in config_class.sub_configs:
        part = getattr(parts, name, None)
        if part is not None and name in known:
            made[name] = {"model_type": part.model_type, **shrunken(type(part))}
    return {**made, **_FORMS.get(config_class.model_type, {}), **fields}


def causal_types() -> dict[str, str]:
    """Return every model type that transformers has a causal language model for, with that model's
    name.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )  # lazy: slow to import

    found = {}
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        name = names if isinstance(names, str) else names[0]
        if model_type in transformers.CONFIG_MAPPING:
            found[model_type] = name
    return found


def shrunken_config(model_type: str, **fields: Any) -> Any:
    """Return a tiny config of a model type."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    return config_class(**shrunken(config_class, **fields))
