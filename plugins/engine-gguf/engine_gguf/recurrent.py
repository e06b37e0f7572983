"""What a Hugging Face config says of models that keep states, out of the settings of a GGUF file.

Which layers attend is seen from the tensors: those that do have queries.
"""

from __future__ import annotations

from engine_gguf import mixtures
from engine_gguf.given import Fields, Given


def _kinds(given: Given, fields: Fields) -> list[str]:
    return [
        "full_attention" if given.has(f"blk.{layer}.attn_q.weight") else "linear_attention"
        for layer in range(fields["num_hidden_layers"])
    ]


def _sizes(given: Given, **names: str) -> Fields:
    return {field: given.settings.count(f"ssm.{name}") for field, name in names.items()}


def mamba(given: Given, fields: Fields) -> Fields:
    """Return Mamba's facts, or those of Falcon Mamba, which normalises what its state space reads."""
    sizes = _sizes(
        given,
        conv_kernel="conv_kernel",
        state_size="state_size",
        time_step_rank="time_step_rank",
        intermediate_size="inner_size",
    )
    falcon = given.settings.flag(f"{given.settings.architecture}.ssm.dt_b_c_rms")
    named = (
        {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
        if falcon
        else {}
    )
    eps = fields["rms_norm_eps"]
    biased = {
        "use_bias": given.has("blk.0.ssm_in.bias"),
        "use_conv_bias": given.has("blk.0.ssm_conv1d.bias"),
    }
    return {**named, **sizes, **biased, "layer_norm_epsilon": eps, "mixer_rms_eps": 1e-6}


def mamba2(given: Given, fields: Fields) -> Fields:
    """Return Mamba 2's facts."""
    sizes = _sizes(
        given, conv_kernel="conv_kernel", state_size="state_size", n_groups="group_count"
    )
    heads = given.settings.count("ssm.time_step_rank")
    width = given.settings.count("ssm.inner_size")
    biased = {
        "use_bias": given.has("blk.0.ssm_in.bias"),
        "use_conv_bias": given.has("blk.0.ssm_conv1d.bias"),
    }
    own = {"num_heads": heads, "head_dim": width // heads, "intermediate_size": width}
    return {**sizes, **own, **biased, "layer_norm_epsilon": fields["rms_norm_eps"]}


def _mamba2_of(given: Given, layer: int) -> Fields:
    """Return the facts of a state space beside attention; `layer` is one that has it."""
    sizes = _sizes(
        given,
        mamba_d_conv="conv_kernel",
        mamba_d_state="state_size",
        mamba_n_groups="group_count",
        mamba_n_heads="time_step_rank",
    )
    width = given.settings.count("ssm.inner_size")
    return {
        **sizes,
        "mamba_d_ssm": width,
        "mamba_d_head": max(1, width // sizes["mamba_n_heads"]),
        "mamba_proj_bias": given.has(f"blk.{layer}.ssm_in.bias"),
        "mamba_conv_bias": given.has(f"blk.{layer}.ssm_conv1d.bias"),
    }


def granite_hybrid(given: Given, fields: Fields) -> Fields:
    """Return Granite 4's facts, or Bamba's, which llama.cpp calls by the same name and which has no
    factors.
    """
    kinds = _kinds(given, fields)
    recurrent = next((layer for layer, kind in enumerate(kinds) if kind == "linear_attention"), 0)
    spaces = _mamba2_of(given, recurrent) if "linear_attention" in kinds else {}
    if (
        given.settings.own("embedding_scale") is None
        and given.settings.own("attention.scale") is None
        and spaces
    ):
        attending = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
        turned = {
            "attention_bias": any(given.has(f"blk.{layer}.attn_q.bias") for layer in attending)
        }
        named = {"architectures": ["BambaForCausalLM"], "model_type": "bamba"}
        return {**spaces, **turned, **named, "attn_layer_indices": attending}
    turns = given.settings.flag(f"{given.settings.architecture}.rope.scaling.finetuned", not spaces)
    experts = mixtures.granite_moe(given, fields)
    shared = experts.get("shared_intermediate_size") or fields["intermediate_size"]
    biased = next((layer for layer, kind in enumerate(kinds) if kind == "full_attention"), 0)
    return {
        **spaces,
        **experts,
        "num_local_experts": experts.get("num_local_experts", 0),
        "shared_intermediate_size": shared,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "attention_bias": given.has(f"blk.{biased}.attn_q.bias"),
        "layer_types": kinds,
        "position_embedding_type": "rope" if turns else "nope",
    }


def falcon_h1(given: Given, fields: Fields) -> Fields:
    """Return Falcon H1's facts; its factors are in the weights already, except that on norms
    nothing is changed.
    """
    return {
        **_mamba2_of(given, 0),
        "mamba_rms_norm": given.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": given.has("blk.0.ssm_out.bias"),
        "max_position_embeddings": fields["max_position_embeddings"],
    }


def jamba(given: Given, fields: Fields) -> Fields:
    """Return Jamba's facts; of layers that attend, and of those with experts, the first two give
    the period.
    """
    settings = given.settings
    layers = range(fields["num_hidden_layers"])
    attending: list[int] = [
        layer for layer in layers if given.has(f"blk.{layer}.attn_q.weight")
    ] or [0]
    mixing = [layer for layer in layers if given.has(f"blk.{layer}.ffn_gate_inp.weight")]
    recurrent = next((layer for layer in layers if layer not in attending), 0)
    width = settings.count("ssm.inner_size")
    hidden = fields["hidden_size"]
    return {
        **_sizes(
            given,
            mamba_d_conv="conv_kernel",
            mamba_d_state="state_size",
            mamba_dt_rank="time_step_rank",
        ),
        "mamba_expand": max(1, width // hidden),
        "mamba_proj_bias": given.has(f"blk.{recurrent}.ssm_in.bias"),
        "mamba_conv_bias": given.has(f"blk.{recurrent}.ssm_conv1d.bias"),
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


def nemotron_h(given: Given, fields: Fields) -> Fields:
    """Return Nemotron H's facts: what each layer is, its tensors say."""
    settings = given.settings
    layers = range(fields["num_hidden_layers"])
    kinds = {
        "ssm_in": "linear_attention",
        "attn_q": "full_attention",
        "ffn_gate_inp": "moe",
        "ffn_up": "mlp",
    }
    found = [
        next(
            (kind for part, kind in kinds.items() if given.has(f"blk.{layer}.{part}.weight")), "mlp"
        )
        for layer in layers
    ]
    own = _mamba2_of(given, found.index("linear_attention")) if "linear_attention" in found else {}
    ups = [
        given.tensors.get(f"blk.{layer}.ffn_up.weight") for layer in layers if found[layer] == "mlp"
    ]
    widths = [up.shape[0] for up in ups if up is not None]
    out: Fields = {
        "layers_block_type": found,
        "intermediate_size": widths[0] if widths else fields["intermediate_size"],
        "mlp_hidden_act": "relu2",
        "mlp_bias": any(given.has(f"blk.{layer}.ffn_up.bias") for layer in layers),
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


def lfm2(given: Given, fields: Fields) -> Fields:
    """Return LFM2's facts: layers that do not attend are short convolutions."""
    kinds = ["conv" if kind == "linear_attention" else kind for kind in _kinds(given, fields)]
    return {
        "layer_types": kinds,
        "conv_L_cache": given.settings.count("shortconv.l_cache"),
        "conv_bias": any(
            given.has(f"blk.{layer}.shortconv.in_proj.bias") for layer in range(len(kinds))
        ),
        "norm_eps": fields["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": fields["intermediate_size"],
        "tie_embedding": fields["tie_word_embeddings"],
    }


def lfm2_moe(given: Given, fields: Fields) -> Fields:
    """Return the facts of LFM2 with experts."""
    settings = given.settings
    dense = settings.count("leading_dense_block_count", 0, least=0)
    return {
        **lfm2(given, fields),
        "num_dense_layers": dense,
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "use_expert_bias": given.has(f"blk.{dense}.exp_probs_b.bias"),
        "routed_scaling_factor": settings.number("expert_weights_scale", 1.0),
        "norm_topk_prob": True,
    }


def _delta(given: Given, fields: Fields) -> Fields:
    settings = given.settings
    own = _sizes(
        given,
        linear_conv_kernel_dim="conv_kernel",
        linear_key_head_dim="state_size",
        linear_num_key_heads="group_count",
        linear_num_value_heads="time_step_rank",
    )
    value = max(1, settings.count("ssm.inner_size") // own["linear_num_value_heads"])
    kinds = _kinds(given, fields)
    attending = kinds.index("full_attention") if "full_attention" in kinds else 0
    return {
        **own,
        "linear_value_head_dim": value,
        "layer_types": kinds,
        "attention_bias": given.has(f"blk.{attending}.attn_q.bias"),
        "hidden_act": "silu",
    }


def qwen3_next(given: Given, fields: Fields) -> Fields:
    """Return Qwen3-Next's facts."""
    return {**_delta(given, fields), **mixtures.shared(given, renormalized=True)}


def qwen3_5(given: Given, fields: Fields) -> Fields:
    """Return Qwen 3.5's facts."""
    return _delta(given, fields)


def qwen3_5_moe(given: Given, fields: Fields) -> Fields:
    """Return the facts of Qwen 3.5 with experts."""
    return {**_delta(given, fields), **mixtures.shared(given, renormalized=True)}
