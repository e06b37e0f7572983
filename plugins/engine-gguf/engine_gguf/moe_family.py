"""Config fields of models with experts, from the settings of a GGUF file."""

from __future__ import annotations

from typing import Final

from engine_gguf.config_source import ConfigSource, Fields

_MAVERICK_LAYERS = 48
_MAVERICK_EXPERTS = 128
"""Llama 4 Maverick is the model without QK norms; no setting says so."""
_NO_ROTATION: Final = 1e20
"""Frequency factor from which a dimension is not rotated."""
_SIGMOID: Final = 2
"""llama.cpp's number of the sigmoid scoring function."""


def mixtral(source: ConfigSource) -> Fields:
    """Return Mixtral's fields."""
    experts = {
        "num_local_experts": source.settings.count("expert_count"),
        "num_experts_per_tok": source.settings.count("expert_used_count"),
    }
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **experts}


def _experts(source: ConfigSource, *, renormalized: bool) -> Fields:
    settings = source.settings
    return {
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "norm_topk_prob": renormalized,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def shared(source: ConfigSource, *, renormalized: bool) -> Fields:
    """Return the fields of layers with shared experts."""
    width = source.settings.count("expert_shared_feed_forward_length")
    return {**_experts(source, renormalized=renormalized), "shared_expert_intermediate_size": width}


def qwen2_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return Qwen 2's fields."""
    del fields
    return shared(source, renormalized=False)


def qwen3_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return Qwen 3's fields."""
    del fields
    return _experts(source, renormalized=True)


def olmoe(source: ConfigSource, fields: Fields) -> Fields:
    """Return OLMoE's fields; the expert width is the layers' width."""
    del fields
    settings = source.settings
    experts = {
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
    }
    return {**experts, "norm_topk_prob": False, **source.numbers(clip_qkv="attention.clamp_kqv")}


def minimax_m2(source: ConfigSource, fields: Fields) -> Fields:
    """Return MiniMax M2's fields; the expert width is the layers' width."""
    settings = source.settings
    return {
        "num_local_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "intermediate_size": settings.count(
            "expert_feed_forward_length", fields["intermediate_size"]
        ),
        "rotary_dim": settings.count("rope.dimension_count", fields["head_dim"]),
    }


def hunyuan_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return Hunyuan's fields: one shared expert of the experts' width."""
    del fields
    settings = source.settings
    return {
        "num_experts": settings.count("expert_count"),
        "moe_topk": settings.count("expert_used_count"),
        "intermediate_size": settings.count("expert_feed_forward_length"),
    }


def ernie4_5_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return ERNIE 4.5's fields."""
    del fields
    settings = source.settings
    return {
        "moe_num_experts": settings.count("expert_count"),
        "moe_k": settings.count("expert_used_count"),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "moe_num_shared_experts": settings.count("expert_shared_count", 0, least=0),
        "moe_layer_interval": settings.count("interleave_moe_layer_step", 1),
        "moe_layer_start_index": settings.count("leading_dense_block_count", 0, least=0),
        "use_bias": source.has("blk.0.attn_q.bias"),
    }


def grouped(source: ConfigSource, fields: Fields) -> Fields:
    """Return the fields of dots.llm1 and DeepSeek: grouped experts after dense layers."""
    settings = source.settings
    return {
        "first_k_dense_replace": settings.count("leading_dense_block_count", 0, least=0),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "n_routed_experts": settings.count("expert_count"),
        "n_shared_experts": settings.count("expert_shared_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "routed_scaling_factor": settings.number("expert_weights_scale", 1.0),
        "norm_topk_prob": settings.flag(f"{settings.architecture}.expert_weights_norm"),
        "n_group": settings.count("expert_group_count", 1),
        "topk_group": settings.count("expert_group_used_count", 1),
        "max_window_layers": fields["num_hidden_layers"],
    }


def glm4_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return GLM 4.5's fields."""
    return {**grouped(source, fields), "use_qk_norm": source.has("blk.0.attn_q_norm.weight")}


def deepseek2(source: ConfigSource, fields: Fields) -> Fields:
    """Return DeepSeek's fields; sigmoid scores mean V3, and a model without experts is Youtu."""
    settings = source.settings
    rotary_dim = settings.count("rope.dimension_count")
    key = settings.count("attention.key_length_mla", settings.count("attention.key_length"))
    rope = {
        key: value
        for key, value in fields["rope_parameters"].items()
        if key != "partial_rotary_factor"
    }
    if rope["rope_type"] == "yarn" and settings.own("rope.scaling.yarn_log_multiplier"):
        weight = settings.number("rope.scaling.yarn_log_multiplier") / 0.1
        rope |= {"mscale": weight, "mscale_all_dim": weight}
    latents = {
        "num_key_value_heads": fields["num_attention_heads"],
        "q_lora_rank": settings.count("attention.q_lora_rank")
        if settings.own("attention.q_lora_rank")
        else None,
        "kv_lora_rank": settings.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotary_dim,
        "qk_nope_head_dim": key - rotary_dim,
        "head_dim": rotary_dim,
        "v_head_dim": settings.count(
            "attention.value_length_mla", settings.count("attention.value_length")
        ),
        "attention_bias": source.has("blk.0.attn_kv_a_mqa.bias"),
        "rope_parameters": rope,
    }
    if not settings.count("expert_count", 0, least=0):
        return {**latents, "architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    experts = grouped(source, fields)
    dense = experts["first_k_dense_replace"]
    stated = settings.own("expert_gating_func")
    sigmoid = source.has(f"blk.{dense}.exp_probs_b.bias") if stated is None else stated == _SIGMOID
    if sigmoid:
        chosen = "noaux_tc"
    elif experts["n_group"] > 1:
        chosen = "group_limited_greedy"
    else:
        chosen = "greedy"
    return {
        **latents,
        **experts,
        "architectures": ["DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if sigmoid else "deepseek_v2",
        "topk_method": chosen,
    }


def minicpm3(source: ConfigSource, fields: Fields) -> Fields:
    """Return MiniCPM 3's fields; its scales are constants that no file states."""
    settings = source.settings
    rotary_dim = settings.count("rope.dimension_count")
    rope = fields["rope_parameters"]
    return {
        "q_lora_rank": settings.count("attention.q_lora_rank"),
        "kv_lora_rank": settings.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotary_dim,
        "qk_nope_head_dim": settings.count("attention.key_length") - rotary_dim,
        "head_dim": rotary_dim,
        "attention_bias": source.has("blk.0.attn_kv_a_mqa.bias"),
        "rope_parameters": {
            key: value for key, value in rope.items() if key != "partial_rotary_factor"
        },
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }


def gpt_oss(source: ConfigSource, fields: Fields) -> Fields:
    """Return gpt-oss's fields."""
    settings = source.settings
    rope = dict(fields["rope_parameters"])
    if rope["rope_type"] == "yarn":
        rope |= {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
    return {
        "num_local_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "intermediate_size": settings.count("expert_feed_forward_length"),
        "sliding_window": settings.count("attention.sliding_window", 128),
        "attention_bias": True,
        "rope_parameters": rope,
    }


def afmoe(source: ConfigSource, fields: Fields) -> Fields:
    """Return Trinity's fields; embeddings are multiplied by the square root of their width."""
    settings = source.settings
    return {
        **source.windows(fields["num_hidden_layers"], 4),
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "num_shared_experts": settings.count("expert_shared_count", 0, least=0),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "num_dense_layers": settings.count("leading_dense_block_count", 0, least=0),
        "route_scale": settings.number("expert_weights_scale", 1.0),
        "mup_enabled": True,
    }


def granite_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return Granite's fields; the expert width is the layers' width."""
    settings = source.settings
    number = settings.count("expert_count", 0, least=0)
    width = settings.count("expert_shared_feed_forward_length", 0, least=0)
    if number:
        experts = {
            "num_local_experts": number,
            "num_experts_per_tok": settings.count("expert_used_count", 1),
        }
    else:
        experts = {}
    shared_mlp: Fields = {"shared_intermediate_size": width} if width else {}
    if width:
        shared_mlp |= {
            "architectures": ["GraniteMoeSharedForCausalLM"],
            "model_type": "granitemoeshared",
        }
    return {**granite(source, fields), **experts, **shared_mlp}


def granite(source: ConfigSource, fields: Fields) -> Fields:
    """Return the multipliers of the Granite family."""
    scales = source.numbers(
        attention_multiplier="attention.scale",
        embedding_multiplier="embedding_scale",
        residual_multiplier="residual_scale",
        logits_scaling="logit_scale",
    )
    return {"attention_multiplier": fields["head_dim"] ** -0.5, **scales}


def phimoe(source: ConfigSource, fields: Fields) -> Fields:
    """Return Phi-3.5-MoE's fields; its layer norms use the RMS-norm epsilon."""
    settings = source.settings
    window = settings.count("attention.sliding_window", 0, least=0)
    rope = dict(fields["rope_parameters"])
    factor = rope.pop("attention_factor", None)
    if factor is not None:
        rope |= {"short_mscale": factor, "long_mscale": factor}
    return {
        "num_local_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "lm_head_bias": source.has("output.bias"),
        "sliding_window": window or None,
        "rope_parameters": rope,
        "router_jitter_noise": 0.01,
    }


def llama4(source: ConfigSource, fields: Fields) -> Fields:
    """Return Llama 4's fields: chunks of 8,192 tokens, and every fourth layer full without RoPE."""
    settings = source.settings
    number = settings.count("expert_count", 0, least=0)
    step = settings.count("interleave_moe_layer_step", 1)
    layers = fields["num_hidden_layers"]
    mixing = [layer for layer in range(layers) if source.has(f"blk.{layer}.ffn_gate_inp.weight")]
    chunk = settings.count("attention.sliding_window", 8192, least=0)
    return {
        "num_local_experts": number or 1,
        "num_experts_per_tok": settings.count("expert_used_count", 1),
        "intermediate_size": settings.count(
            "expert_feed_forward_length", fields["intermediate_size"]
        ),
        "intermediate_size_mlp": fields["intermediate_size"],
        "interleave_moe_layer_step": step,
        "moe_layers": mixing,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": chunk or fields["max_position_embeddings"],
        "use_qk_norm": layers != _MAVERICK_LAYERS or number != _MAVERICK_EXPERTS,
    }


def gemma4(source: ConfigSource, fields: Fields) -> Fields:
    """Return Gemma 4's fields: full-attention layers have own heads, some layers share KV."""
    settings = source.settings
    layers = fields["num_hidden_layers"]
    windows = source.windows(layers, 6)
    full = [
        kind == "full_attention" for kind in windows.get("layer_types", ["full_attention"] * layers)
    ]
    kv_heads = settings.each("attention.head_count_kv", layers)
    widths = settings.each("feed_forward_length", layers)
    size = settings.count("attention.key_length")
    local = settings.count("attention.key_length_swa")
    shared = settings.count("attention.shared_kv_layers", 0, least=0)
    own = [layer for layer in range(layers) if full[layer] and layer < layers - shared]
    tied = any(not source.has(f"blk.{layer}.attn_v.weight") for layer in own)
    experts = settings.count("expert_count", 0, least=0)
    factors = source.factors.get("rope_freqs.weight") or []
    if factors:
        rotary_share = sum(factor < _NO_ROTATION for factor in factors) / max(1, len(factors))
    else:
        rotary_share = 0.25
    theta = settings.number("rope.freq_base", 1_000_000.0)
    numbered = [(layer, heads) for layer, heads in enumerate(kv_heads) if full[layer]]
    out: Fields = {
        **windows,
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": local,
        "global_head_dim": size,
        "num_key_value_heads": next(
            (heads for layer, heads in enumerate(kv_heads) if not full[layer]), kv_heads[0]
        ),
        "num_global_key_value_heads": numbered[0][1] if numbered else kv_heads[0],
        "attention_k_eq_v": tied,
        "num_kv_shared_layers": shared,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": shared > 0 and widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": settings.count(
            "embedding_length_per_layer_input", 0, least=0
        ),
        "vocab_size_per_layer_input": fields["vocab_size"],
        "final_logit_softcapping": settings.own("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": theta,
                "partial_rotary_factor": rotary_share,
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": settings.number("rope.freq_base_swa", 10_000.0),
            },
        },
    }
    if not tied:  # the config has this number only if keys are values
        out["per_layer_config"] = {
            str(layer): {"head_dim": size, "num_key_value_heads": heads}
            for layer, heads in numbered
        }
    if experts:
        out |= {
            "enable_moe_block": True,
            "num_experts": experts,
            "top_k_experts": settings.count("expert_used_count"),
            "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        }
    return out
