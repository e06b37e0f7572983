"""Tiny configs of further architectures, every particular feature of each switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VOCAB: Final = 300
WINDOW: Final = 24
_SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_GROUPED: Final = {**_SHAPE, "num_key_value_heads": 2}
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
    "InternLM3ForCausalLM": ("InternLM3Config", {**_DENSE, "attention_bias": True, "mlp_bias": True}),
    "SeedOssForCausalLM": (
        "SeedOssConfig",
        {**_DENSE, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True, "rope_parameters": _LINEAR},
    ),
    "SmolLM3ForCausalLM": (
        "SmolLM3Config",
        {**_GROUPED, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "Ernie4_5ForCausalLM": ("Ernie4_5Config", {**_DENSE, "use_bias": True}),
    "HeliumForCausalLM": ("HeliumConfig", {**_GROUPED, "head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "HunYuanDenseV1ForCausalLM": (
        "HunYuanDenseV1Config",
        {
            **_DENSE,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0},
        },
    ),
    "BitNetForCausalLM": ("BitNetConfig", {**_GROUPED, "attention_bias": True}),
    "GraniteForCausalLM": ("GraniteConfig", {**_GROUPED, **_GRANITE}),
    "HyperCLOVAXForCausalLM": ("HyperCLOVAXConfig", {**_DENSE, **_GRANITE}),
    "ArceeForCausalLM": ("ArceeConfig", {**_DENSE, "attention_bias": True, "mlp_bias": True, "rope_parameters": _YARN}),
    "Jais2ForCausalLM": ("Jais2Config", {**_DENSE}),
    "NemotronForCausalLM": (
        "NemotronConfig",
        {**_DENSE, "attention_bias": True, "mlp_bias": True, "rope_parameters": _HALF},
    ),
    "ApertusForCausalLM": ("ApertusConfig", {**_GROUPED, "attention_bias": True}),
    "Starcoder2ForCausalLM": ("Starcoder2Config", {**_GROUPED, "sliding_window": WINDOW}),
    "PhiForCausalLM": ("PhiConfig", {**_GROUPED, "qk_layernorm": True, "rope_parameters": _HALF}),
    "PersimmonForCausalLM": ("PersimmonConfig", {**_SHAPE, "qk_layernorm": True, "rope_parameters": _HALF}),
    "CohereForCausalLM": (
        "CohereConfig",
        {**_GROUPED, "attention_bias": True, "use_qk_norm": True, "logit_scale": 0.4},
    ),
    "Cohere2ForCausalLM": (
        "Cohere2Config",
        {**_GROUPED, "attention_bias": True, "sliding_window": WINDOW, "layer_types": _SLIDING, "logit_scale": 0.4},
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
    "Exaone4ForCausalLM": ("Exaone4Config", {**_DENSE, "sliding_window": WINDOW, "layer_types": _SLIDING}),
    "GemmaForCausalLM": ("GemmaConfig", {**_DENSE, "tie_word_embeddings": True, "attention_bias": True}),
    "MinistralForCausalLM": ("MinistralConfig", {**_DENSE, "sliding_window": WINDOW, "layer_types": _SLIDING}),
}
"""Architecture to its transformers config class and the facts of its tiny form."""

_GPT: Final = {
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 512,
}
_NEO: Final = {"vocab_size": VOCAB, "hidden_size": 64, "num_heads": 4, "max_position_embeddings": 512}

GPT_LIKE: Final[Mapping[str, Tiny]] = {
    "OPTForCausalLM": (
        "OPTConfig",
        {**_SHAPE, "ffn_dim": 96, "do_layer_norm_before": False, "word_embed_proj_dim": 48},
    ),
    "GPTNeoForCausalLM": (
        "GPTNeoConfig",
        {**_NEO, "num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    ),
    "GPTJForCausalLM": ("GPTJConfig", {**_GPT, "rotary_dim": 8}),
    "CodeGenForCausalLM": ("CodeGenConfig", {**_GPT, "n_head": 8, "rotary_dim": 4, "n_inner": 96}),
    "GPTBigCodeForCausalLM": ("GPTBigCodeConfig", {**_GPT}),
    "BioGptForCausalLM": ("BioGptConfig", {**_SHAPE, "tie_word_embeddings": True}),
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
        {**_SHAPE, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True, "ffn_hidden_size": 96},
    ),
}
