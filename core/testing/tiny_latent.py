"""Tiny configs of models that attend over latents, every particular feature of each switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.testing.tiny_configs import ROUTED, SHAPE, VOCAB, Tiny

_YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 1.2,
}
_LATENT: Final = {
    **SHAPE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "attention_bias": True,
    "rope_parameters": _YARN,
}
_MIXED: Final = {**_LATENT, **ROUTED, "first_k_dense_replace": 1}
_PLAIN: Final = {"rope_type": "default", "rope_theta": 10000.0}
# With few index heads, many scores are 0, and implementations choose differently among equal ones.
_INDEXED: Final = {**_MIXED, "index_topk": 20, "index_head_dim": 16, "index_n_heads": 11}

LATENT: Final[Mapping[str, Tiny]] = {
    "DeepseekV2ForCausalLM": (
        "DeepseekV2Config",
        {**_MIXED, "topk_method": "group_limited_greedy"},
    ),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", {**_MIXED}),
    "DeepseekV32ForCausalLM": ("DeepseekV32Config", {**_INDEXED}),
    "AXK1ForCausalLM": ("AXK1Config", {**_MIXED, "moe_layer_freq": 2}),
    "AXK2ForCausalLM": ("AXK2Config", {**_INDEXED, "gated_norm_rank": 12}),
    "Dots3NoteForCausalLM": (
        "Dots3NoteTextConfig",
        {
            **{key: value for key, value in _INDEXED.items() if key != "rope_parameters"},
            "head_dim": 24,
            "layer_types": ["indexed_attention", "sliding_attention", "indexed_attention"],
            "sliding_window": 24,
            "shared_experts_intermediate_size": 40,
            "swa_num_attention_heads": 2,
            "swa_num_key_value_heads": 2,
            "swa_q_lora_rank": 32,
            "swa_kv_lora_rank": 28,
            "swa_head_dim": 20,
            "swa_qk_nope_head_dim": 8,
            "swa_v_head_dim": 16,
        },
    ),
    "Glm4MoeLiteForCausalLM": (
        "Glm4MoeLiteConfig",
        {**_MIXED, "rope_interleave": False, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "GlmMoeDsaForCausalLM": (
        "GlmMoeDsaConfig",
        {**_INDEXED, "indexer_types": ["full", "shared", "full"]},
    ),
    "DeepseekV4ForCausalLM": (
        "DeepseekV4Config",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "moe_intermediate_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "head_dim": 32,
            "max_position_embeddings": 512,
            "q_lora_rank": 40,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"],
            "layer_types": [
                "sliding_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
                "compressed_sparse_attention",
            ],
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 16,
            },
            "sliding_window": 12,
            "o_groups": 2,
            "o_lora_rank": 24,
            "index_n_heads": 11,
            "index_head_dim": 16,
            "index_topk": 5,
            "qk_rope_head_dim": 8,
            "hc_mult": 3,
            "swiglu_limit": 0.7,
            "rope_parameters": {key: _YARN[key] for key in _YARN if "mscale" not in key},
        },
    ),
    "HYV4ForCausalLM": (
        "HYV4Config",
        {
            **{key: value for key, value in _INDEXED.items() if key != "first_k_dense_replace"},
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "indexer_types": ["full", "full", "shared"],
            "hc_mult": 3,
            "hc_magnitude": 1.5,
            "swiglu_limit": 0.7,
        },
    ),
    "Mistral4ForCausalLM": (
        "Mistral4Config",
        {
            **_MIXED,
            "rope_parameters": {
                **_YARN,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.3,
                "partial_rotary_factor": 8 / 24,
            },
        },
    ),
    "LongcatFlashForCausalLM": (
        "LongcatFlashConfig",
        {
            **{
                key: value
                for key, value in _LATENT.items()
                if key not in ("intermediate_size", "num_hidden_layers")
            },
            "num_layers": 2,
            "head_dim": 8,
            "ffn_hidden_size": 96,
            "expert_ffn_hidden_size": 32,
            "n_routed_experts": 6,
            "zero_expert_num": 3,
            "moe_topk": 3,
            "routed_scaling_factor": 1.5,
        },
    ),
    "MiniCPM3ForCausalLM": (
        "MiniCPM3Config",
        {**_LATENT, "mlp_bias": True, "scale_emb": 3, "scale_depth": 1.2, "dim_model_base": 48},
    ),
    "YoutuForCausalLM": (
        "YoutuConfig",
        {**_LATENT, "q_lora_rank": None, "rope_parameters": _PLAIN},
    ),
}
"""Architecture to its transformers config class and the facts of its tiny form."""
