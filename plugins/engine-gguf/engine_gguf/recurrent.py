"""Config fields of models with recurrent state, from the settings of a GGUF file.

Attention layers are those with a query tensor.
"""

from __future__ import annotations

from engine_gguf import moe_family
from engine_gguf.config_source import ConfigSource, Fields


def _kinds(source: ConfigSource, fields: Fields) -> list[str]:
    return [
        "full_attention" if source.has(f"blk.{layer}.attn_q.weight") else "linear_attention"
        for layer in range(fields["num_hidden_layers"])
    ]


def _sizes(source: ConfigSource, **names: str) -> Fields:
    return {field: source.settings.count(f"ssm.{name}") for field, name in names.items()}


def mamba(source: ConfigSource, fields: Fields) -> Fields:
    """Return Mamba's fields, or Falcon Mamba's, which normalises its state space inputs."""
    sizes = _sizes(
        source,
        conv_kernel="conv_kernel",
        state_size="state_size",
        time_step_rank="time_step_rank",
        intermediate_size="inner_size",
    )
    falcon = source.settings.flag(f"{source.settings.architecture}.ssm.dt_b_c_rms")
    if falcon:
        named = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
    else:
        named = {}
    eps = fields["rms_norm_eps"]
    biased = {
        "use_bias": source.has("blk.0.ssm_in.bias"),
        "use_conv_bias": source.has("blk.0.ssm_conv1d.bias"),
    }
    return {**named, **sizes, **biased, "layer_norm_epsilon": eps, "mixer_rms_eps": 1e-6}


def mamba2(source: ConfigSource, fields: Fields) -> Fields:
    """Return Mamba 2's fields."""
    sizes = _sizes(
        source, conv_kernel="conv_kernel", state_size="state_size", n_groups="group_count"
    )
    heads = source.settings.count("ssm.time_step_rank")
    width = source.settings.count("ssm.inner_size")
    biased = {
        "use_bias": source.has("blk.0.ssm_in.bias"),
        "use_conv_bias": source.has("blk.0.ssm_conv1d.bias"),
    }
    own = {"num_heads": heads, "head_dim": width // heads, "intermediate_size": width}
    return {**sizes, **own, **biased, "layer_norm_epsilon": fields["rms_norm_eps"]}


def _mamba2_of(source: ConfigSource, layer: int) -> Fields:
    """Return the fields of Mamba 2 in a hybrid model; `layer` is a Mamba layer."""
    sizes = _sizes(
        source,
        mamba_d_conv="conv_kernel",
        mamba_d_state="state_size",
        mamba_n_groups="group_count",
        mamba_n_heads="time_step_rank",
    )
    width = source.settings.count("ssm.inner_size")
    return {
        **sizes,
        "mamba_d_ssm": width,
        "mamba_d_head": max(1, width // sizes["mamba_n_heads"]),
        "mamba_proj_bias": source.has(f"blk.{layer}.ssm_in.bias"),
        "mamba_conv_bias": source.has(f"blk.{layer}.ssm_conv1d.bias"),
    }


def granite_hybrid(source: ConfigSource, fields: Fields) -> Fields:
    """Return Granite 4's fields, or Bamba's, which shares its llama.cpp name but no multipliers."""
    kinds = _kinds(source, fields)
    recurrent = next((layer for layer, kind in enumerate(kinds) if kind == "linear_attention"), 0)
    spaces = _mamba2_of(source, recurrent) if "linear_attention" in kinds else {}
    if (
        source.settings.own("embedding_scale") is None
        and source.settings.own("attention.scale") is None
        and spaces
    ):
        attending = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
        attention = {
            "attention_bias": any(source.has(f"blk.{layer}.attn_q.bias") for layer in attending)
        }
        named = {"architectures": ["BambaForCausalLM"], "model_type": "bamba"}
        return {**spaces, **attention, **named, "attn_layer_indices": attending}
    uses_rope = source.settings.flag(
        f"{source.settings.architecture}.rope.scaling.finetuned", not spaces
    )
    experts = moe_family.granite_moe(source, fields)
    shared = experts.get("shared_intermediate_size") or fields["intermediate_size"]
    biased = next((layer for layer, kind in enumerate(kinds) if kind == "full_attention"), 0)
    return {
        **spaces,
        **experts,
        "num_local_experts": experts.get("num_local_experts", 0),
        "shared_intermediate_size": shared,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "attention_bias": source.has(f"blk.{biased}.attn_q.bias"),
        "layer_types": kinds,
        "position_embedding_type": "rope" if uses_rope else "nope",
    }


def falcon_h1(source: ConfigSource, fields: Fields) -> Fields:
    """Return Falcon H1's fields; its multipliers are folded into the weights."""
    return {
        **_mamba2_of(source, 0),
        "mamba_rms_norm": source.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": source.has("blk.0.ssm_out.bias"),
        "max_position_embeddings": fields["max_position_embeddings"],
    }


def jamba(source: ConfigSource, fields: Fields) -> Fields:
    """Return Jamba's fields; the first two attention and MoE layers give the periods."""
    settings = source.settings
    layers = range(fields["num_hidden_layers"])
    attending: list[int] = [
        layer for layer in layers if source.has(f"blk.{layer}.attn_q.weight")
    ] or [0]
    mixing = [layer for layer in layers if source.has(f"blk.{layer}.ffn_gate_inp.weight")]
    recurrent = next((layer for layer in layers if layer not in attending), 0)
    width = settings.count("ssm.inner_size")
    hidden = fields["hidden_size"]
    return {
        **_sizes(
            source,
            mamba_d_conv="conv_kernel",
            mamba_d_state="state_size",
            mamba_dt_rank="time_step_rank",
        ),
        "mamba_expand": max(1, width // hidden),
        "mamba_proj_bias": source.has(f"blk.{recurrent}.ssm_in.bias"),
        "mamba_conv_bias": source.has(f"blk.{recurrent}.ssm_conv1d.bias"),
        "attn_layer_period": _period(attending, len(layers)),
        "attn_layer_offset": attending[0],
        "num_experts": settings.count("expert_count", 0, least=0) if mixing else 1,
        "num_experts_per_tok": settings.count("expert_used_count", 1),
        "expert_layer_period": _period(mixing, len(layers)),
        "expert_layer_offset": mixing[0] if mixing else 0,
        "hidden_act": "silu",
    }


def _period(found: list[int], layers: int) -> int:
    return found[1] - found[0] if len(found) > 1 else layers


def nemotron_h(source: ConfigSource, fields: Fields) -> Fields:
    """Return Nemotron H's fields; a layer's type follows from its tensors."""
    settings = source.settings
    layers = range(fields["num_hidden_layers"])
    kinds = {
        "ssm_in": "linear_attention",
        "attn_q": "full_attention",
        "ffn_gate_inp": "moe",
        "ffn_up": "mlp",
    }
    found = [
        next(
            (kind for part, kind in kinds.items() if source.has(f"blk.{layer}.{part}.weight")),
            "mlp",
        )
        for layer in layers
    ]
    own = _mamba2_of(source, found.index("linear_attention")) if "linear_attention" in found else {}
    ups = [
        source.tensors.get(f"blk.{layer}.ffn_up.weight")
        for layer in layers
        if found[layer] == "mlp"
    ]
    widths = [up.shape[0] for up in ups if up is not None]
    out: Fields = {
        "layers_block_type": found,
        "intermediate_size": widths[0] if widths else fields["intermediate_size"],
        "mlp_hidden_act": "relu2",
        "mlp_bias": any(source.has(f"blk.{layer}.ffn_up.bias") for layer in layers),
        "layer_norm_epsilon": fields["rms_norm_eps"],
    }
    if own:
        out |= {
            "mamba_num_heads": own["mamba_n_heads"],
            "mamba_head_dim": own["mamba_d_head"],
            "n_groups": own["mamba_n_groups"],
            "ssm_state_size": own["mamba_d_state"],
            "conv_kernel": own["mamba_d_conv"],
            "use_bias": own["mamba_proj_bias"],
            "use_conv_bias": own["mamba_conv_bias"],
        }
    if "moe" in found:
        out |= {
            "n_routed_experts": settings.count("expert_count"),
            "num_experts_per_tok": settings.count("expert_used_count"),
            "moe_intermediate_size": settings.count("expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": settings.count(
                "expert_shared_feed_forward_length"
            ),
            "moe_latent_size": settings.count("moe_latent_size", 0, least=0) or None,
            "norm_topk_prob": settings.flag(f"{settings.architecture}.expert_weights_norm"),
            "routed_scaling_factor": settings.number("expert_weights_scale", 1.0),
            "n_group": settings.count("expert_group_count", 1),
            "topk_group": settings.count("expert_group_used_count", 1),
        }
    return out


def lfm2(source: ConfigSource, fields: Fields) -> Fields:
    """Return LFM2's fields: layers without attention are short convolutions."""
    kinds = ["conv" if kind == "linear_attention" else kind for kind in _kinds(source, fields)]
    return {
        "layer_types": kinds,
        "conv_L_cache": source.settings.count("shortconv.l_cache"),
        "conv_bias": any(
            source.has(f"blk.{layer}.shortconv.in_proj.bias") for layer in range(len(kinds))
        ),
        "norm_eps": fields["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": fields["intermediate_size"],
        "tie_embedding": fields["tie_word_embeddings"],
    }


def lfm2_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return the fields of LFM2 with experts."""
    settings = source.settings
    dense = settings.count("leading_dense_block_count", 0, least=0)
    return {
        **lfm2(source, fields),
        "num_dense_layers": dense,
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "use_expert_bias": source.has(f"blk.{dense}.exp_probs_b.bias"),
        "routed_scaling_factor": settings.number("expert_weights_scale", 1.0),
        "norm_topk_prob": True,
    }


def _delta(source: ConfigSource, fields: Fields) -> Fields:
    settings = source.settings
    own = _sizes(
        source,
        linear_conv_kernel_dim="conv_kernel",
        linear_key_head_dim="state_size",
        linear_num_key_heads="group_count",
        linear_num_value_heads="time_step_rank",
    )
    value = max(1, settings.count("ssm.inner_size") // own["linear_num_value_heads"])
    kinds = _kinds(source, fields)
    attending = kinds.index("full_attention") if "full_attention" in kinds else 0
    return {
        **own,
        "linear_value_head_dim": value,
        "layer_types": kinds,
        "attention_bias": source.has(f"blk.{attending}.attn_q.bias"),
        "hidden_act": "silu",
    }


def qwen3_next(source: ConfigSource, fields: Fields) -> Fields:
    """Return Qwen3-Next's fields."""
    return {**_delta(source, fields), **moe_family.shared(source, renormalized=True)}


def qwen3_5(source: ConfigSource, fields: Fields) -> Fields:
    """Return Qwen 3.5's fields."""
    return _delta(source, fields)


def qwen3_5_moe(source: ConfigSource, fields: Fields) -> Fields:
    """Return the fields of Qwen 3.5 with experts."""
    return {**_delta(source, fields), **moe_family.shared(source, renormalized=True)}
