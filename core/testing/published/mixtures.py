"""Mixtures of experts, and Jais."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from core.testing.published import references
from core.testing.published.layout import (
    HIDDEN,
    VOCAB,
    Published,
    Tensors,
    fuse,
    unstack_experts,
)
from core.testing.published.references import EXPERTS, of_class

_SHAPE: Final = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_BAILING: Final = (
    (r"embed_tokens", "word_embeddings"),
    (r"self_attn\.o_proj", "attention.dense"),
    (r"self_attn\.q_norm", "attention.query_layernorm"),
    (r"self_attn\.k_norm", "attention.key_layernorm"),
    (r"self_attn", "attention"),
    (r"e_score_correction_bias", "expert_bias"),
)
_BAILING_CONFIG: Final = {
    **_SHAPE,
    **EXPERTS,
    "model_type": "bailing_moe",
    "first_k_dense_replace": 1,
    "num_shared_experts": 2,
    "head_dim": 16,
    "use_bias": False,
    "use_qkv_bias": False,
    "rope_scaling": None,
    "norm_topk_prob": True,
}


def _unstack(tensors: Tensors) -> None:
    unstack_experts(tensors, ("gate_proj", "up_proj", "down_proj"))


def _as_bailing(tensors: Tensors) -> None:
    _unstack(tensors)
    parts = tuple(f"attention.{part}" for part in ("q_proj", "k_proj", "v_proj"))
    fuse(tensors, parts, "attention.query_key_value")


def _with_unnormalized_head(tensors: Tensors) -> None:
    """Scale the columns of the head, which the architecture normalises."""
    _as_bailing(tensors)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * torch.linspace(1, 4, HIDDEN)


def _with_normalized_head() -> Any:
    model = references.llama_with_experts(dense_layers=1, renormalize=True)
    model.lm_head.register_forward_pre_hook(
        lambda head, given: (given[0] / head.weight.norm(dim=0),)
    )
    return model


MIXTURES: Final[Mapping[str, Published]] = {
    "DeepseekForCausalLM": Published(
        "deepseek-ai/deepseek-moe-16b-base",
        partial(references.llama_with_experts, dense_layers=1, renormalize=False),
        {
            **_SHAPE,
            "model_type": "deepseek",
            "attention_bias": False,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
            "moe_layer_freq": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_experts_per_tok": 3,
            "scoring_func": "softmax",
        },
        (),
        _unstack,
    ),
    "BailingMoeForCausalLM": Published(
        "inclusionAI/Ling-lite",
        _with_normalized_head,
        {**_BAILING_CONFIG, "norm_head": True},
        _BAILING,
        _with_unnormalized_head,
    ),
    "BailingMoeV2ForCausalLM": Published(
        "inclusionAI/Ling-mini-2.0",
        partial(
            of_class,
            "Glm4MoeForCausalLM",
            head_dim=16,
            use_qk_norm=True,
            attention_bias=False,
            first_k_dense_replace=1,
            n_routed_experts=8,
            n_shared_experts=2,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            rms_norm_eps=1e-6,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        ),
        {
            **_BAILING_CONFIG,
            "model_type": "bailing_moe_v2",
            "moe_router_enable_expert_bias": True,
            "n_group": 4,
            "topk_group": 2,
            "num_nextn_predict_layers": 0,
            "partial_rotary_factor": 0.5,
            "routed_scaling_factor": 2.5,
            "score_function": "sigmoid",
            "use_qk_norm": True,
        },
        _BAILING,
        _as_bailing,
    ),
    "JAISLMHeadModel": Published(
        "inceptionai/jais-13b",
        partial(references.gpt2_as_jais, 2.0, 2.0),
        {
            "model_type": "jais",
            "activation_function": "swiglu",
            "embeddings_scale": 2.0,
            "layer_norm_epsilon": 1e-5,
            "n_embd": HIDDEN,
            "n_head": 4,
            "n_inner": 96,
            "n_layer": 3,
            "n_positions": 512,
            "position_embedding_type": "alibi",
            "scale_attn_weights": True,
            "scale_qk_dot_by_d": True,
            "vocab_size": VOCAB,
            "width_scale": 2.0,
        },
    ),
}
"""Architecture to its layout."""
