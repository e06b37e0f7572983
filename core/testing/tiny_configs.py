"""Tiny configs of further architectures, every particular feature of each switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VOCAB: Final = 300
WINDOW: Final = 24
SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
GROUPED_SHAPE: Final = {**SHAPE, "num_key_value_heads": 2}
DENSE_SHAPE: Final = {**GROUPED_SHAPE, "head_dim": 24}
_SLIDING: Final = ["sliding_attention", "full_attention", "sliding_attention"]
_YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR: Final = {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}
_HALF: Final = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
GRANITE: Final = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
    "attention_bias": True,
    "mlp_bias": True,
}

Tiny = tuple[str, Mapping[str, Any]]

DENSE: Final[Mapping[str, Tiny]] = {
    "InternLM3ForCausalLM": (
        "InternLM3Config",
        {**DENSE_SHAPE, "attention_bias": True, "mlp_bias": True},
    ),
    "Emu3ForCausalLM": ("Emu3TextConfig", {**GROUPED_SHAPE, "pad_token_id": VOCAB - 2}),
    "SeedOssForCausalLM": (
        "SeedOssConfig",
        {
            **DENSE_SHAPE,
            "attention_bias": True,
            "attention_out_bias": True,
            "mlp_bias": True,
            "rope_parameters": _LINEAR,
        },
    ),
    "SmolLM3ForCausalLM": (
        "SmolLM3Config",
        {
            **GROUPED_SHAPE,
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
    ),
    "Ernie4_5ForCausalLM": ("Ernie4_5Config", {**DENSE_SHAPE, "use_bias": True}),
    "HeliumForCausalLM": (
        "HeliumConfig",
        {**GROUPED_SHAPE, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    ),
    "HunYuanDenseV1ForCausalLM": (
        "HunYuanDenseV1Config",
        {
            **DENSE_SHAPE,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 50.0,
                "factor": 1.0,
                "rope_theta": 10000.0,
            },
        },
    ),
    "BitNetForCausalLM": ("BitNetConfig", {**GROUPED_SHAPE, "attention_bias": True}),
    "GraniteForCausalLM": ("GraniteConfig", {**GROUPED_SHAPE, **GRANITE}),
    "HyperCLOVAXForCausalLM": ("HyperCLOVAXConfig", {**DENSE_SHAPE, **GRANITE}),
    "ArceeForCausalLM": (
        "ArceeConfig",
        {**DENSE_SHAPE, "attention_bias": True, "mlp_bias": True, "rope_parameters": _YARN},
    ),
    "Jais2ForCausalLM": ("Jais2Config", {**DENSE_SHAPE}),
    "NemotronForCausalLM": (
        "NemotronConfig",
        {**DENSE_SHAPE, "attention_bias": True, "mlp_bias": True, "rope_parameters": _HALF},
    ),
    "ApertusForCausalLM": ("ApertusConfig", {**GROUPED_SHAPE, "attention_bias": True}),
    "Starcoder2ForCausalLM": ("Starcoder2Config", {**GROUPED_SHAPE, "sliding_window": WINDOW}),
    "PhiForCausalLM": (
        "PhiConfig",
        {**GROUPED_SHAPE, "qk_layernorm": True, "rope_parameters": _HALF},
    ),
    "PersimmonForCausalLM": (
        "PersimmonConfig",
        {**SHAPE, "qk_layernorm": True, "rope_parameters": _HALF},
    ),
    "CohereForCausalLM": (
        "CohereConfig",
        {**GROUPED_SHAPE, "attention_bias": True, "use_qk_norm": True, "logit_scale": 0.4},
    ),
    "Cohere2ForCausalLM": (
        "Cohere2Config",
        {
            **GROUPED_SHAPE,
            "attention_bias": True,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
            "logit_scale": 0.4,
        },
    ),
    "StableLmForCausalLM": (
        "StableLmConfig",
        {
            **GROUPED_SHAPE,
            "use_qkv_bias": True,
            "qk_layernorm": True,
            "use_parallel_residual": True,
        },
    ),
    "GlmForCausalLM": ("GlmConfig", {**DENSE_SHAPE}),
    "Glm4ForCausalLM": ("Glm4Config", {**DENSE_SHAPE}),
    "OlmoForCausalLM": ("OlmoConfig", {**GROUPED_SHAPE, "attention_bias": True, "clip_qkv": 1.0}),
    "Olmo3ForCausalLM": (
        "Olmo3Config",
        {
            **GROUPED_SHAPE,
            "attention_bias": True,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
            "rope_parameters": {
                "full_attention": _YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "Exaone4ForCausalLM": (
        "Exaone4Config",
        {**DENSE_SHAPE, "sliding_window": WINDOW, "layer_types": _SLIDING},
    ),
    "GemmaForCausalLM": (
        "GemmaConfig",
        {**DENSE_SHAPE, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "MinistralForCausalLM": (
        "MinistralConfig",
        {**DENSE_SHAPE, "sliding_window": WINDOW, "layer_types": _SLIDING},
    ),
}
"""Architecture to its transformers config class and the facts of its tiny form."""

_GPT: Final = {
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 512,
}
_NEO: Final = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_heads": 4,
    "max_position_embeddings": 512,
}

GPT_LIKE: Final[Mapping[str, Tiny]] = {
    "OPTForCausalLM": (
        "OPTConfig",
        {**SHAPE, "ffn_dim": 96, "do_layer_norm_before": False, "word_embed_proj_dim": 48},
    ),
    "GPTNeoForCausalLM": (
        "GPTNeoConfig",
        {
            **_NEO,
            "num_layers": 4,
            "attention_types": [[["global", "local"], 2]],
            "window_size": WINDOW,
        },
    ),
    "GPTJForCausalLM": ("GPTJConfig", {**_GPT, "rotary_dim": 8}),
    "CodeGenForCausalLM": ("CodeGenConfig", {**_GPT, "n_head": 8, "rotary_dim": 4, "n_inner": 96}),
    "GPTBigCodeForCausalLM": ("GPTBigCodeConfig", {**_GPT}),
    "BioGptForCausalLM": ("BioGptConfig", {**SHAPE, "tie_word_embeddings": True}),
    "OpenAIGPTLMHeadModel": ("OpenAIGPTConfig", {**_GPT}),
    "GPTNeoXJapaneseForCausalLM": (
        "GPTNeoXJapaneseConfig",
        {
            **{name: size for name, size in SHAPE.items() if name != "intermediate_size"},
            "intermediate_multiple_size": 2,
            "rope_parameters": _HALF,
        },
    ),
    "XGLMForCausalLM": (
        "XGLMConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "ffn_dim": 96,
            "num_layers": 3,
            "attention_heads": 4,
            "max_position_embeddings": 512,
        },
    ),
    "BloomForCausalLM": (
        "BloomConfig",
        {"vocab_size": VOCAB, "hidden_size": 72, "n_layer": 3, "n_head": 6, "seq_length": 512},
    ),
    "MptForCausalLM": (
        "MptConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 72,
            "n_layers": 3,
            "n_heads": 6,
            "max_seq_len": 512,
            "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.3},
        },
    ),
    "FalconForCausalLM": (
        "FalconConfig",
        {
            **SHAPE,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "bias": True,
            "ffn_hidden_size": 96,
        },
    ),
}

_MOE: Final = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
ROUTED: Final = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "attention_bias": True,
}
_GRANITE_MOE: Final = {**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2}

MIXTURES: Final[Mapping[str, Tiny]] = {
    "Qwen2MoeForCausalLM": (
        "Qwen2MoeConfig",
        {
            **GROUPED_SHAPE,
            **_MOE,
            "shared_expert_intermediate_size": 48,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
        },
    ),
    "OlmoeForCausalLM": (
        "OlmoeConfig",
        {
            **GROUPED_SHAPE,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "clip_qkv": 1.0,
            "attention_bias": True,
        },
    ),
    "FlexOlmoForCausalLM": (
        "FlexOlmoConfig",
        {
            **GROUPED_SHAPE,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "pad_token_id": 0,
        },
    ),
    "GraniteMoeForCausalLM": ("GraniteMoeConfig", {**GROUPED_SHAPE, **_GRANITE_MOE}),
    "GraniteMoeSharedForCausalLM": (
        "GraniteMoeSharedConfig",
        {**GROUPED_SHAPE, **_GRANITE_MOE, "shared_intermediate_size": 48},
    ),
    "Glm4MoeForCausalLM": (
        "Glm4MoeConfig",
        {**DENSE_SHAPE, **ROUTED, "use_qk_norm": True, "rope_parameters": _HALF},
    ),
    "Dots1ForCausalLM": (
        "Dots1Config",
        {
            **DENSE_SHAPE,
            **ROUTED,
            "first_k_dense_replace": 1,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "SolarOpenForCausalLM": ("SolarOpenConfig", {**DENSE_SHAPE, **ROUTED}),
    "MiniMaxM2ForCausalLM": (
        "MiniMaxM2Config",
        {**DENSE_SHAPE, "num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 12},
    ),
    "AfmoeForCausalLM": (
        "AfmoeConfig",
        {
            **DENSE_SHAPE,
            **_MOE,
            "num_dense_layers": 1,
            "num_shared_experts": 2,
            "route_scale": 1.5,
            "mup_enabled": True,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
        },
    ),
    "Ernie4_5_MoeForCausalLM": (
        "Ernie4_5_MoeConfig",
        {
            **GROUPED_SHAPE,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "use_bias": True,
        },
    ),
    "HunYuanMoEV1ForCausalLM": (
        "HunYuanMoEV1Config",
        {**DENSE_SHAPE, "num_experts": 4, "moe_topk": 2, "attention_bias": True},
    ),
    "PhimoeForCausalLM": (
        "PhimoeConfig",
        {
            **GROUPED_SHAPE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "router_jitter_noise": 0.2,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + i / 8 for i in range(8)],
                "long_factor": [1.0 + i for i in range(8)],
                "short_mscale": 1.25,
                "long_mscale": 1.5,
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "DbrxForCausalLM": (
        "DbrxConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 3,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 20000.0},
            "ffn_config": {
                "hidden_size": 64,
                "ffn_hidden_size": 48,
                "moe_num_experts": 4,
                "moe_top_k": 2,
            },
        },
    ),
    "GptOssForCausalLM": (
        "GptOssConfig",
        {
            **DENSE_SHAPE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
            "rope_parameters": {**_YARN, "truncate": False},
        },
    ),
    "Llama4ForCausalLM": (
        "Llama4TextConfig",
        {
            **DENSE_SHAPE,
            "intermediate_size_mlp": 80,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_layers": [1, 2],
            "no_rope_layers": [1, 0, 1],
            "attention_chunk_size": 16,
            "floor_scale": 8,
            "attn_scale": 0.3,
            "attention_bias": True,
        },
    ),
}

_GEMMA4_UNIFIED: Final = {
    **SHAPE,
    "tie_word_embeddings": True,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": True,
    "per_layer_config": {str(i): {"head_dim": 32, "num_key_value_heads": 1} for i in (1, 3, 5)},
    "final_logit_softcapping": 8.0,
}
_GEMMA4: Final = {
    **_GEMMA4_UNIFIED,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
}

_ZAYA: Final = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "lm_head_bias": True,
    "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
    "sliding_window": WINDOW,
    "moe_intermediate_size": 32,
    "num_experts": 6,
    "router_hidden_size": 24,
    "cca_time0": 3,
    "cca_time1": 2,
}

_INKLING: Final = {
    **{name: SHAPE[name] for name in ("vocab_size", "hidden_size", "max_position_embeddings")},
    "unpadded_vocab_size": VOCAB,
    "num_hidden_layers": 4,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 8,
    "sliding_window_size": WINDOW,
    "d_rel": 6,
    "rel_extent": 20,
    "log_scaling_n_floor": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "route_scale": 1.5,
    "eos_token_id": VOCAB - 3,
}
_INKLING_1: Final = {
    "intermediate_size": 96,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "logits_mup_width_multiplier": 2.0,
}
_INKLING_2: Final = {
    "n_layers_per_attn_res_block": 2,
    "qk_l2_clip_threshold": 3.0,
    "rel_l2_clip_threshold": 2.0,
    "final_logit_softcapping": 6.0,
}
UNLIKE_OTHERS: Final[Mapping[str, Tiny]] = {
    "Gemma4ForCausalLM": ("Gemma4TextConfig", _GEMMA4),
    "Gemma4UnifiedForCausalLM": ("Gemma4UnifiedTextConfig", _GEMMA4_UNIFIED),
    "ZayaForCausalLM": ("ZayaConfig", _ZAYA),
    "InklingForCausalLM": ("InklingTextConfig", {**_INKLING, **_INKLING_1}),
    "Inkling2ForCausalLM": ("Inkling2TextConfig", {**_INKLING, **_INKLING_2}),
}
