"""Tiny configs of models with linear attention and short convolutions, every particular feature of
each switched on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.testing.tiny_configs import SHAPE, VOCAB, WINDOW, Tiny

_HEADS: Final = {**SHAPE, "num_key_value_heads": 2}
_KINDS: Final = ["linear_attention", "full_attention", "linear_attention"]
_DELTA: Final = {
    **_HEADS,
    "head_dim": 24,
    "layer_types": _KINDS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 3,
}
_SHARED: Final = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_CONV: Final = {
    **_HEADS,
    "conv_bias": True,
    "conv_L_cache": 4,
    "layer_types": ["conv", "full_attention", "conv"],
    "tie_word_embeddings": True,
}

LINEAR: Final[Mapping[str, Tiny]] = {
    "Qwen3NextForCausalLM": (
        "Qwen3NextConfig",
        {
            **_DELTA,
            **_SHARED,
            "attention_bias": True,
            "norm_topk_prob": False,
            "mlp_only_layers": [1],
        },
    ),
    "Qwen3_5ForCausalLM": (
        "Qwen3_5TextConfig",
        {
            **_DELTA,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 2, 1],
                "mrope_interleaved": True,
            },
        },
    ),
    "Qwen3_5MoeForCausalLM": ("Qwen3_5MoeTextConfig", {**_DELTA, **_SHARED}),
    "Qwen4ExpForCausalLM": (
        "Qwen4ExpTextConfig",
        {
            **{key: value for key, value in _DELTA.items() if key != "intermediate_size"},
            **_SHARED,
            "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
            "hc_count": 2,
            "hc_lowrank": 12,
            "ple_layer_ids": [1, 3],
            "ple_embed_dim": 32,
            "ple_conv_kernel_size": 3,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 50,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 4,
            "indexer_n_heads": 8,  # with few, blocks that no head scores above 0 are tied
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
            "output_gate_type": "sigmoid",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 2, 1],
            },
            "eos_token_id": VOCAB - 1,
        },
    ),
    "OlmoHybridForCausalLM": (
        "OlmoHybridConfig",
        {
            **{key: value for key, value in _DELTA.items() if key != "head_dim"},
            # transformers writes the convolution in three parts of equal size
            "linear_key_head_dim": 48,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "KimiLinearForCausalLM": (
        "KimiLinearConfig",
        {
            **SHAPE,
            "num_key_value_heads": 4,
            "layer_types": _KINDS,
            "linear_head_dim": 16,
            "linear_num_heads": 6,
            "linear_conv_kernel_dim": 3,
            "kv_lora_rank": 24,
            "q_lora_rank": None,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
    ),
    "Lfm3ForCausalLM": (
        "Lfm3Config",
        {
            **SHAPE,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "layer_types": ["conv", "sliding_attention", "full_attention"],
            "sliding_window": WINDOW,
            "conv_bias": True,
        },
    ),
    "BailingHybridForCausalLM": (
        "BailingHybridConfig",
        {
            **SHAPE,
            "num_key_value_heads": 4,
            "layer_types": _KINDS,
            "head_dim": 16,
            "short_conv_kernel_size": 3,
            "kda_lower_bound": -0.1,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "num_mtp_layers": 0,
        },
    ),
    "MiniMaxForCausalLM": (
        "MiniMaxConfig",
        {
            **_HEADS,
            "head_dim": 24,
            "block_size": 16,
            "layer_types": _KINDS,
            "sliding_window": WINDOW,
            "num_local_experts": 4,
            "full_attn_alpha_factor": 1.5,
            "full_attn_beta_factor": 0.8,
            "linear_attn_alpha_factor": 1.3,
            "linear_attn_beta_factor": 0.7,
            "mlp_alpha_factor": 1.2,
            "mlp_beta_factor": 0.9,
        },
    ),
    "Lfm2ForCausalLM": (
        "Lfm2Config",
        {**_CONV, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.3},
    ),
    "Lfm2MoeForCausalLM": (
        "Lfm2MoeConfig",
        {
            **_CONV,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
        },
    ),
    "RecurrentGemmaForCausalLM": (
        "RecurrentGemmaConfig",
        {
            **_HEADS,
            "hidden_size": 80,
            "lru_width": 96,
            "attention_window_size": WINDOW,
            "attention_bias": True,
            "block_types": ["recurrent", "attention"],
            "conv1d_width": 3,
            "logits_soft_cap": 8.0,
            "tie_word_embeddings": True,
        },
    ),
}
"""Architecture to its transformers config class and the facts of its tiny form."""
