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
_GROUPED: Final = {**SHAPE, "num_key_value_heads": 2}
_DENSE: Final = {**_GROUPED, "head_dim": 24}
_SLIDING: Final = ["sliding_attention", "full_attention", "sliding_attention"]
_YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR: Final = {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}
_HALF: Final = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
_GRANITE: Final = {
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
        {**_DENSE, "attention_bias": True, "mlp_bias": True},
    ),
    "SeedOssForCausalLM": (
        "SeedOssConfig",
        {
            **_DENSE,
            "attention_bias": True,
            "attention_out_bias": True,
            "mlp_bias": True,
            "rope_parameters": _LINEAR,
        },
    ),
    "SmolLM3ForCausalLM": (
        "SmolLM3Config",
        {
            **_GROUPED,
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
    ),
    "Ernie4_5ForCausalLM": ("Ernie4_5Config", {**_DENSE, "use_bias": True}),
    "HeliumForCausalLM": (
        "HeliumConfig",
        {**_GROUPED, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    ),
    "HunYuanDenseV1ForCausalLM": (
        "HunYuanDenseV1Config",
        {
            **_DENSE,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 50.0,
                "factor": 1.0,
                "rope_theta": 10000.0,
            },
        },
    ),
    "BitNetForCausalLM": ("BitNetConfig", {**_GROUPED, "attention_bias": True}),
    "GraniteForCausalLM": ("GraniteConfig", {**_GROUPED, **_GRANITE}),
    "HyperCLOVAXForCausalLM": ("HyperCLOVAXConfig", {**_DENSE, **_GRANITE}),
    "ArceeForCausalLM": (
        "ArceeConfig",
        {**_DENSE, "attention_bias": True, "mlp_bias": True, "rope_parameters": _YARN},
    ),
    "Jais2ForCausalLM": ("Jais2Config", {**_DENSE}),
    "NemotronForCausalLM": (
        "NemotronConfig",
        {**_DENSE, "attention_bias": True, "mlp_bias": True, "rope_parameters": _HALF},
    ),
    "ApertusForCausalLM": ("ApertusConfig", {**_GROUPED, "attention_bias": True}),
    "Starcoder2ForCausalLM": ("Starcoder2Config", {**_GROUPED, "sliding_window": WINDOW}),
    "PhiForCausalLM": ("PhiConfig", {**_GROUPED, "qk_layernorm": True, "rope_parameters": _HALF}),
    "PersimmonForCausalLM": (
        "PersimmonConfig",
        {**SHAPE, "qk_layernorm": True, "rope_parameters": _HALF},
    ),
    "CohereForCausalLM": (
        "CohereConfig",
        {**_GROUPED, "attention_bias": True, "use_qk_norm": True, "logit_scale": 0.4},
    ),
    "Cohere2ForCausalLM": (
        "Cohere2Config",
        {
            **_GROUPED,
            "attention_bias": True,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
            "logit_scale": 0.4,
        },
    ),
    "StableLmForCausalLM": (
        "StableLmConfig",
        {**_GROUPED, "use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "GlmForCausalLM": ("GlmConfig", {**_DENSE}),
    "Glm4ForCausalLM": ("Glm4Config", {**_DENSE}),
    "OlmoForCausalLM": ("OlmoConfig", {**_GROUPED, "attention_bias": True, "clip_qkv": 1.0}),
    "Olmo3ForCausalLM": (
        "Olmo3Config",
        {
            **_GROUPED,
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
        {**_DENSE, "sliding_window": WINDOW, "layer_types": _SLIDING},
    ),
    "GemmaForCausalLM": (
        "GemmaConfig",
        {**_DENSE, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "MinistralForCausalLM": (
        "MinistralConfig",
        {**_DENSE, "sliding_window": WINDOW, "layer_types": _SLIDING},
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
_GRANITE_MOE: Final = {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2}

MIXTURES: Final[Mapping[str, Tiny]] = {
    "Qwen2MoeForCausalLM": (
        "Qwen2MoeConfig",
        {
            **_GROUPED,
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
            **_GROUPED,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "clip_qkv": 1.0,
            "attention_bias": True,
        },
    ),
    "FlexOlmoForCausalLM": (
        "FlexOlmoConfig",
        {
            **_GROUPED,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "pad_token_id": 0,
        },
    ),
    "GraniteMoeForCausalLM": ("GraniteMoeConfig", {**_GROUPED, **_GRANITE_MOE}),
    "GraniteMoeSharedForCausalLM": (
        "GraniteMoeSharedConfig",
        {**_GROUPED, **_GRANITE_MOE, "shared_intermediate_size": 48},
    ),
    "Glm4MoeForCausalLM": (
        "Glm4MoeConfig",
        {**_DENSE, **ROUTED, "use_qk_norm": True, "rope_parameters": _HALF},
    ),
    "Dots1ForCausalLM": (
        "Dots1Config",
        {
            **_DENSE,
            **ROUTED,
            "first_k_dense_replace": 1,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "SolarOpenForCausalLM": ("SolarOpenConfig", {**_DENSE, **ROUTED}),
    "MiniMaxM2ForCausalLM": (
        "MiniMaxM2Config",
        {**_DENSE, "num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 12},
    ),
    "AfmoeForCausalLM": (
        "AfmoeConfig",
        {
            **_DENSE,
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
            **_GROUPED,
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
        {**_DENSE, "num_experts": 4, "moe_topk": 2, "attention_bias": True},
    ),
    "PhimoeForCausalLM": (
        "PhimoeConfig",
        {
            **_GROUPED,
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
            **_DENSE,
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
            **_DENSE,
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

_GEMMA4: Final = {
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
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
    "final_logit_softcapping": 8.0,
}

_T5: Final = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
}
_BART: Final = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 128,
    "scale_embedding": True,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_APART: Final = {
    "tie_word_embeddings": False,
    "share_encoder_decoder_embeddings": False,
    "decoder_vocab_size": 290,
    "bos_token_id": None,  # the others' are beyond it
    "eos_token_id": None,
}
_WHISPER: Final = {
    **{
        name: value
        for name, value in _BART.items()
        if name not in ("max_position_embeddings", "forced_eos_token_id")
    },
    "num_mel_bins": 10,
    "max_source_positions": 20,
    "max_target_positions": 128,
}

ENCODER_DECODERS: Final[Mapping[str, Tiny]] = {
    "T5ForConditionalGeneration": ("T5Config", {**_T5, "tie_word_embeddings": False}),
    "MT5ForConditionalGeneration": ("MT5Config", _T5),
    "UMT5ForConditionalGeneration": ("UMT5Config", {**_T5, "feed_forward_proj": "relu"}),
    "BartForConditionalGeneration": ("BartConfig", _BART),
    "MBartForConditionalGeneration": ("MBartConfig", {**_BART, "tie_word_embeddings": False}),
    "PLBartForConditionalGeneration": ("PLBartConfig", _BART),
    "MarianMTModel": ("MarianConfig", {**_BART, **_APART}),
    "PegasusForConditionalGeneration": ("PegasusConfig", {**_BART, "tie_word_embeddings": False}),
    "M2M100ForConditionalGeneration": ("M2M100Config", {**_BART, "pad_token_id": 1}),
    "BlenderbotForConditionalGeneration": (
        "BlenderbotConfig",
        {**_BART, "tie_word_embeddings": False},
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {**_WHISPER, "tie_word_embeddings": False},
    ),
}
"""Those that have an encoder, and so are asked with two prompts."""

UNLIKE_OTHERS: Final[Mapping[str, Tiny]] = {"Gemma4ForCausalLM": ("Gemma4TextConfig", _GEMMA4)}

_MAMBA2: Final = {
    "state_size": 16,
    "n_groups": 2,
    "num_heads": 8,
    "head_dim": 16,
    "conv_kernel": 4,
    "chunk_size": 16,
}

_HYBRID: Final = {
    **_GROUPED,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "mamba_proj_bias": True,
    "time_step_limit": (0.01, 2.0),
}
_MAMBA: Final = {**SHAPE, "state_size": 8, "conv_kernel": 4, "use_bias": True, "time_step_rank": 6}

RECURRENT: Final[Mapping[str, Tiny]] = {
    "MambaForCausalLM": ("MambaConfig", _MAMBA),
    "FalconMambaForCausalLM": ("FalconMambaConfig", {**_MAMBA, "mixer_rms_eps": 1e-3}),
    "Mamba2ForCausalLM": (
        "Mamba2Config",
        {**SHAPE, **_MAMBA2, "use_bias": True, "time_step_limit": (0.01, 2.0)},
    ),
    "JambaForCausalLM": (
        "JambaConfig",
        {
            **_GROUPED,
            "mamba_d_state": 8,
            "mamba_dt_rank": 6,
            "mamba_proj_bias": True,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
        },
    ),
    "BambaForCausalLM": (
        "BambaConfig",
        {**_HYBRID, "attn_layer_indices": [1], "attention_bias": True, "mlp_bias": True},
    ),
    "Zamba2ForCausalLM": (
        "Zamba2Config",
        {
            **SHAPE,
            "tie_word_embeddings": True,  # or transformers would not share the other weights either
            "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
            "use_shared_attention_adapter": True,
            "adapter_rank": 12,
            "use_mem_rope": True,
            "add_bias_linear": True,
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
            "mamba_d_state": 16,
            "time_step_min": 0.05,
            "chunk_size": 16,
        },
    ),
    "GraniteMoeHybridForCausalLM": (
        "GraniteMoeHybridConfig",
        {
            **_HYBRID,
            **_GRANITE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "position_embedding_type": "rope",
        },
    ),
    "FalconH1ForCausalLM": (
        "FalconH1Config",
        {
            **_HYBRID,
            "mamba_d_ssm": 128,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "lm_head_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "mlp_multipliers": [0.7, 0.8],
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.3,
            "attention_out_multiplier": 0.9,
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.8,
            "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        },
    ),
    "NemotronHForCausalLM": (
        "NemotronHConfig",
        {
            **_DENSE,
            "layers_block_type": [
                "linear_attention",
                "moe",
                "full_attention",
                "mlp",
                "linear_attention",
            ],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 16,
            "conv_kernel": 4,
            "chunk_size": 16,
            "use_bias": True,
            "mlp_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "moe_latent_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
}
