"""What a Hugging Face config says of models with experts, out of the settings of a GGUF file."""

from __future__ import annotations

from typing import Final

from engine_gguf.given import Fields, Given

_MAVERICK_LAYERS = 48
_MAVERICK_EXPERTS = 128
"""Llama 4 Maverick is the one without norms of queries and keys; no setting says it."""
_STILL: Final = 1e20
"""What angles are divided by that are not to turn."""
_SIGMOID: Final = 2
"""How scores of experts are made, as llama.cpp counts the ways."""


def mixtral(given: Given) -> Fields:
    """Return Mixtral's facts."""
    experts = {
        "num_local_experts": given.settings.count("expert_count"),
        "num_experts_per_tok": given.settings.count("expert_used_count"),
    }
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **experts}


def _experts(given: Given, *, renormalized: bool) -> Fields:
    settings = given.settings
    return {
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "norm_topk_prob": renormalized,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def shared(given: Given, *, renormalized: bool) -> Fields:
    """Return the facts of layers that have an MLP beside the experts."""
    width = given.settings.count("expert_shared_feed_forward_length")
    return {**_experts(given, renormalized=renormalized), "shared_expert_intermediate_size": width}


def qwen2_moe(given: Given, fields: Fields) -> Fields:
    """Return Qwen 2's facts."""
    del fields
    return shared(given, renormalized=False)


def qwen3_moe(given: Given, fields: Fields) -> Fields:
    """Return Qwen 3's facts."""
    del fields
    return _experts(given, renormalized=True)


def olmoe(given: Given, fields: Fields) -> Fields:
    """Return OLMoE's facts, whose experts are as wide as its layers say."""
    del fields
    settings = given.settings
    experts = {
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
    }
    return {**experts, "norm_topk_prob": False, **given.numbers(clip_qkv="attention.clamp_kqv")}


def minimax_m2(given: Given, fields: Fields) -> Fields:
    """Return MiniMax M2's facts, whose experts are as wide as its layers say."""
    settings = given.settings
    return {
        "num_local_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "intermediate_size": settings.count(
            "expert_feed_forward_length", fields["intermediate_size"]
        ),
        "rotary_dim": settings.count("rope.dimension_count", fields["head_dim"]),
    }


def hunyuan_moe(given: Given, fields: Fields) -> Fields:
    """Return Hunyuan's facts: one MLP beside the experts, as wide as they are."""
    del fields
    settings = given.settings
    return {
        "num_experts": settings.count("expert_count"),
        "moe_topk": settings.count("expert_used_count"),
        "intermediate_size": settings.count("expert_feed_forward_length"),
    }


def ernie4_5_moe(given: Given, fields: Fields) -> Fields:
    """Return ERNIE 4.5's facts."""
    del fields
    settings = given.settings
    return {
        "moe_num_experts": settings.count("expert_count"),
        "moe_k": settings.count("expert_used_count"),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "moe_num_shared_experts": settings.count("expert_shared_count", 0, least=0),
        "moe_layer_interval": settings.count("interleave_moe_layer_step", 1),
        "moe_layer_start_index": settings.count("leading_dense_block_count", 0, least=0),
        "use_bias": given.has("blk.0.attn_q.bias"),
    }


def grouped(given: Given, fields: Fields) -> Fields:
    """Return the facts of experts in groups beside shared ones, behind layers without: dots.llm1's
    and DeepSeek's.
    """
    settings = given.settings
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


def glm4_moe(given: Given, fields: Fields) -> Fields:
    """Return GLM 4.5's facts."""
    return {**grouped(given, fields), "use_qk_norm": given.has("blk.0.attn_q_norm.weight")}


def deepseek2(given: Given, fields: Fields) -> Fields:
    """Return DeepSeek's facts; scores by sigmoid are those of V3, and a model without experts is
    Youtu's.
    """
    settings = given.settings
    turned = settings.count("rope.dimension_count")
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
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "head_dim": turned,
        "v_head_dim": settings.count(
            "attention.value_length_mla", settings.count("attention.value_length")
        ),
        "attention_bias": given.has("blk.0.attn_kv_a_mqa.bias"),
        "rope_parameters": rope,
    }
    if not settings.count("expert_count", 0, least=0):
        return {**latents, "architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    experts = grouped(given, fields)
    dense = experts["first_k_dense_replace"]
    stated = settings.own("expert_gating_func")
    sigmoid = given.has(f"blk.{dense}.exp_probs_b.bias") if stated is None else stated == _SIGMOID
    chosen = (
        "noaux_tc" if sigmoid else "group_limited_greedy" if experts["n_group"] > 1 else "greedy"
    )
    return {
        **latents,
        **experts,
        "architectures": ["DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if sigmoid else "deepseek_v2",
        "topk_method": chosen,
    }


def minicpm3(given: Given, fields: Fields) -> Fields:
    """Return MiniCPM 3's facts; its scales are the same in every model, and in no file."""
    settings = given.settings
    turned = settings.count("rope.dimension_count")
    rope = fields["rope_parameters"]
    return {
        "q_lora_rank": settings.count("attention.q_lora_rank"),
        "kv_lora_rank": settings.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": settings.count("attention.key_length") - turned,
        "head_dim": turned,
        "attention_bias": given.has("blk.0.attn_kv_a_mqa.bias"),
        "rope_parameters": {
            key: value for key, value in rope.items() if key != "partial_rotary_factor"
        },
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }


def gpt_oss(given: Given, fields: Fields) -> Fields:
    """Return gpt-oss's facts."""
    settings = given.settings
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


def afmoe(given: Given, fields: Fields) -> Fields:
    """Return Trinity's facts; its embeddings are multiplied by the root of their width."""
    settings = given.settings
    return {
        **given.windows(fields["num_hidden_layers"], 4),
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "num_shared_experts": settings.count("expert_shared_count", 0, least=0),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "num_dense_layers": settings.count("leading_dense_block_count", 0, least=0),
        "route_scale": settings.number("expert_weights_scale", 1.0),
        "mup_enabled": True,
    }


def granite_moe(given: Given, fields: Fields) -> Fields:
    """Return Granite's facts, whose experts are as wide as its layers say, with an MLP beside them
    in some models.
    """
    settings = given.settings
    number = settings.count("expert_count", 0, least=0)
    width = settings.count("expert_shared_feed_forward_length", 0, least=0)
    experts = (
        {"num_local_experts": number, "num_experts_per_tok": settings.count("expert_used_count", 1)}
        if number
        else {}
    )
    beside: Fields = {"shared_intermediate_size": width} if width else {}
    if width:
        beside |= {
            "architectures": ["GraniteMoeSharedForCausalLM"],
            "model_type": "granitemoeshared",
        }
    return {**granite(given, fields), **experts, **beside}


def granite(given: Given, fields: Fields) -> Fields:
    """Return the factors of Granite's kind."""
    scales = given.numbers(
        attention_multiplier="attention.scale",
        embedding_multiplier="embedding_scale",
        residual_multiplier="residual_scale",
        logits_scaling="logit_scale",
    )
    return {"attention_multiplier": fields["head_dim"] ** -0.5, **scales}


def phimoe(given: Given, fields: Fields) -> Fields:
    """Return Phi-3.5-MoE's facts; its norms are layer norms, and their number is kept as if they
    were others.
    """
    settings = given.settings
    window = settings.count("attention.sliding_window", 0, least=0)
    rope = dict(fields["rope_parameters"])
    factor = rope.pop("attention_factor", None)
    if factor is not None:
        rope |= {"short_mscale": factor, "long_mscale": factor}
    return {
        "num_local_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "lm_head_bias": given.has("output.bias"),
        "sliding_window": window or None,
        "rope_parameters": rope,
        "router_jitter_noise": 0.01,
    }


def llama4(given: Given, fields: Fields) -> Fields:
    """Return Llama 4's facts: layers see chunks of 8,192 tokens, and every fourth all of them,
    without positions.
    """
    settings = given.settings
    number = settings.count("expert_count", 0, least=0)
    step = settings.count("interleave_moe_layer_step", 1)
    layers = fields["num_hidden_layers"]
    mixing = [layer for layer in range(layers) if given.has(f"blk.{layer}.ffn_gate_inp.weight")]
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


def gemma4(given: Given, fields: Fields) -> Fields:
    """Return Gemma 4's facts: full layers have heads of their own size and number, some layers the
    keys of others.
    """
    settings = given.settings
    layers = fields["num_hidden_layers"]
    windows = given.windows(layers, 6)
    full = [
        kind == "full_attention" for kind in windows.get("layer_types", ["full_attention"] * layers)
    ]
    kv_heads = settings.each("attention.head_count_kv", layers)
    widths = settings.each("feed_forward_length", layers)
    size = settings.count("attention.key_length")
    local = settings.count("attention.key_length_swa")
    shared = settings.count("attention.shared_kv_layers", 0, least=0)
    own = [layer for layer in range(layers) if full[layer] and layer < layers - shared]
    tied = any(not given.has(f"blk.{layer}.attn_v.weight") for layer in own)
    experts = settings.count("expert_count", 0, least=0)
    factors = given.factors.get("rope_freqs.weight") or []
    turning = sum(factor < _STILL for factor in factors) / max(1, len(factors)) if factors else 0.25
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
                "partial_rotary_factor": turning,
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": settings.number("rope.freq_base_swa", 10_000.0),
            },
        },
    }
    if not tied:  # a config says this number only where keys are values
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
