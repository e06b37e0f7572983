"""Tiny configs of recurrent and hybrid models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.testing.tiny_configs import DENSE_SHAPE, GRANITE, GROUPED_SHAPE, SHAPE, VOCAB, Tiny

_MAMBA2: Final = {
    "state_size": 16,
    "n_groups": 2,
    "num_heads": 8,
    "head_dim": 16,
    "conv_kernel": 4,
    "chunk_size": 16,
}

_HYBRID: Final = {
    **GROUPED_SHAPE,
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
            **GROUPED_SHAPE,
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
            "add_out_norm": False,  # its norm is stored and applied anyway
        },
    ),
    "ZambaForCausalLM": (
        "ZambaConfig",
        {
            **GROUPED_SHAPE,
            "tie_word_embeddings": True,  # or transformers would not share the other weights either
            "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
            "n_mamba_heads": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 6,
            "mamba_proj_bias": True,
        },
    ),
    "RwkvForCausalLM": (
        "RwkvConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "attention_hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "context_length": 512,
            "rescale_every": 2,
        },
    ),
    "xLSTMForCausalLM": (
        "xLSTMConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 128,  # its keys have 64, a size that transformers' cache does not round
            "num_hidden_layers": 3,
            "num_heads": 4,
            "chunk_size": 16,
            "add_out_norm": False,  # its norm is stored and applied anyway
            "autocast_kernel_dtype": "float32",  # bfloat16 by default, in a float32 model too
        },
    ),
    "GraniteMoeHybridForCausalLM": (
        "GraniteMoeHybridConfig",
        {
            **_HYBRID,
            **GRANITE,
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
            **DENSE_SHAPE,
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
            "add_out_norm": False,  # its norm is stored and applied anyway
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
