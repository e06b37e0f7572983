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
    take,
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
_LARGE4: Final = (
    (r"^model\.language_model\.(layers|norm)\.", r"\1."),
    (r"^model\.language_model\.embed_tokens", "tok_embeddings"),
    (r"^model\.language_model\.rotary_emb", "lerope"),
    (r"^lm_head", "output"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"self_attn\.([qo])_proj", r"attention.w\1"),
    (r"self_attn\.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
    (r"self_attn\.kv_a_layernorm", "attention.kv_a_norm"),
    (r"self_attn\.kv_b_proj", "attention.wkv_b"),
    (r"self_attn", "attention"),
    (r"softmax_scaling\.scale", "ssmax_scaling.s"),
    (r"softmax_scaling\.bias", "ssmax_scaling.b"),
    (r"mlp\.(gate\.|experts|shared_experts)", r"\1"),
    (r"mlp\.", "feed_forward."),
    (r"gate_proj\.", "w1."),
    (r"up_proj\.", "w3."),
    (r"(feed_forward|shared_experts)\.down_proj\.", r"\1.w2."),
)
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


def _as_mistral_large4(tensors: Tensors) -> None:
    """Leave out what reads images."""
    take(tensors, r"model\.(vision_tower|multi_modal_projector)\..*")
    unstack_experts(tensors, ("w1", "w3", "w2"))


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


def _as_grok(tensors: Tensors) -> None:
    """Change the offset of Gemma's norms, and name the experts one by one."""
    unstack_experts(tensors, ("linear", "linear_v", "linear_1"))
    for match, weight in take(tensors, r"(.*norm)\.weight"):
        tensors[f"{match[1]}.scale"] = weight + 1


def _as_step3(tensors: Tensors) -> None:
    """Stack gate, up and down apart."""
    for match, stacked in take(tensors, r"(.*\.moe)\.experts\.gate_up_proj"):
        gate, up = stacked.chunk(2, 1)
        tensors[f"{match[1]}.gate_proj.weight"] = gate
        tensors[f"{match[1]}.up_proj.weight"] = up
    for match, stacked in take(tensors, r"(.*\.moe)\.experts\.down_proj"):
        tensors[f"{match[1]}.down_proj.weight"] = stacked


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
    "Grok1ModelForCausalLM": Published(
        "hpcaitech/grok-1",
        references.gemma2_as_grok,
        {
            **_SHAPE,
            "model_type": "grok-1",
            "intermediate_size": EXPERTS["moe_intermediate_size"],
            "num_experts": EXPERTS["num_experts"],
            "num_experts_per_tok": EXPERTS["num_experts_per_tok"],
            "rms_norm_eps": 1e-5,
            "attn_output_multiplier": 0.25,
            "max_attn_value": 3.0,
            "embedding_multiplier_scale": 8.0,
            "output_multiplier_scale": 0.6,
            "tie_word_embeddings": True,
        },
        (
            (r"self_attn", "attn"),
            (r"input_layernorm", "pre_attn_norm"),
            (r"post_attention_layernorm", "post_attn_norm"),
            (r"pre_feedforward_layernorm", "pre_moe_norm"),
            (r"post_feedforward_layernorm", "post_moe_norm"),
            (r"\.mlp\.", ".moe_block."),
        ),
        _as_grok,
    ),
    "Step3TextForCausalLM": Published(
        "stepfun-ai/step3",
        partial(references.llama_as_step3, 40),
        {
            **{name: value for name, value in _SHAPE.items() if "num_key" not in name},
            "model_type": "step3_text",
            "head_dim": 16,
            "share_q_dim": 40,
            "max_position_embeddings": None,
            "max_position_embedding": 512,
            "moe_layers_enum": "1,2",
            "moe_num_experts": EXPERTS["num_experts"],
            "moe_top_k": EXPERTS["num_experts_per_tok"],
            "moe_intermediate_size": EXPERTS["moe_intermediate_size"],
            "share_expert_dim": 2 * EXPERTS["moe_intermediate_size"],
            "norm_expert_weight": True,
            "rms_norm_eps": 1e-5,
        },
        (
            (r"q_proj\.0\.", "q_proj."),
            (r"q_proj\.1\.", "inter_norm."),
            (r"q_proj\.2\.", "wq."),
            (r"mlp\.shared_experts\.", "share_expert."),
            (r"mlp\.(gate\.|experts)", r"moe.\1"),
        ),
        _as_step3,
    ),
    "PanguUltraMoEForCausalLM": Published(
        "FreedomIntelligence/openPangu-Ultra-MoE-718B",
        references.deepseek_as_pangu,
        {
            **_SHAPE,
            "model_type": "pangu_ultra_moe",
            "num_key_value_heads": 4,
            "attention_kv_lora_dim": 24,
            "attention_q_lora_dim": 40,
            "attention_qk_dim": 16,
            "attention_qk_rope_dim": 8,
            "attention_v_dim": 20,
            "num_routed_experts": 8,
            "num_shared_experts": 1,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
            "num_mtp_layers": 0,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "rms_norm_eps": 1e-5,
            "sandwich_norm": True,
        },
        (
            (r"post_attention_layernorm", "pre_mlp_layernorm"),
            (r"self_attn\.norm\.", "post_attention_layernorm."),
            (r"mlp\.norm\.", "post_mlp_layernorm."),
            (r"\.inner\.", "."),
        ),
        _unstack,
    ),
    "MistralLarge4ForCausalLM": Published(
        "mistralai/Mistral-Large-4-1T-A52B",
        references.mistral_large4,
        references.MISTRAL_LARGE4,
        _LARGE4,
        _as_mistral_large4,
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
