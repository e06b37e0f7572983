"""Config fields of the GPT family, which has field names of its own."""

from __future__ import annotations

from engine_gguf.config_source import ConfigSource, Fields


def _eps(source: ConfigSource) -> Fields:
    eps = source.settings.number("attention.layer_norm_epsilon", 1e-5)
    return dict.fromkeys(("layer_norm_epsilon", "layer_norm_eps", "norm_eps"), eps)


def gpt2(source: ConfigSource, fields: Fields) -> Fields:
    """Return GPT-2's fields; the number of positions is that of the position embedding."""
    positions = source.tensors.get("position_embd.weight")
    found = positions.shape[0] if positions is not None and len(positions.shape) == 2 else 0
    return {
        "n_embd": fields["hidden_size"],
        "n_layer": fields["num_hidden_layers"],
        "n_head": fields["num_attention_heads"],
        "n_inner": fields["intermediate_size"],
        "n_positions": found or fields["max_position_embeddings"],
        "max_position_embeddings": found or fields["max_position_embeddings"],
        **_eps(source),
    }


def gpt_bigcode(source: ConfigSource, fields: Fields) -> Fields:
    """Return StarCoder's fields: one key-value head."""
    return {**gpt2(source, fields), "multi_query": fields["num_key_value_heads"] == 1}


def gpt_neox(source: ConfigSource, fields: Fields) -> Fields:
    """Return GPT-NeoX's fields."""
    name = f"{source.settings.architecture}.use_parallel_residual"
    return {
        **_eps(source),
        "use_parallel_residual": source.settings.flag(name, True),
        "attention_bias": True,
    }


def bloom(source: ConfigSource, fields: Fields) -> Fields:
    """Return BLOOM's fields."""
    return {
        "n_layer": fields["num_hidden_layers"],
        "n_head": fields["num_attention_heads"],
        "seq_length": fields["max_position_embeddings"],
        **_eps(source),
    }


def mpt(source: ConfigSource, fields: Fields) -> Fields:
    """Return MPT's fields."""
    clipped = source.numbers(
        clip_qkv="attention.clamp_kqv", alibi_bias_max="attention.max_alibi_bias"
    )
    return {
        "d_model": fields["hidden_size"],
        "n_layers": fields["num_hidden_layers"],
        "n_heads": fields["num_attention_heads"],
        "max_seq_len": fields["max_position_embeddings"],
        "attn_config": {"alibi": True, **clipped},
        **_eps(source),
    }


def falcon(source: ConfigSource, fields: Fields) -> Fields:
    """Return Falcon's fields; the newer variant has two norms before its parallel branches."""
    two = source.has("blk.0.attn_norm_2.weight")
    kv_heads = fields["num_key_value_heads"]
    return {
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": two or kv_heads > 1,
        "num_ln_in_parallel_attn": 2 if two else 1,
        "multi_query": kv_heads == 1,
        "parallel_attn": True,
        "bias": source.has("blk.0.attn_qkv.bias"),
        "alibi": False,
        "ffn_hidden_size": fields["intermediate_size"],
        **_eps(source),
    }


def phi(source: ConfigSource, fields: Fields) -> Fields:
    """Return the fields of Phi 1 to 2."""
    del fields
    return {
        **_eps(source),
        "hidden_act": "gelu_new",
        "qk_layernorm": source.has("blk.0.attn_q_norm.weight"),
    }


def nemotron(source: ConfigSource, fields: Fields) -> Fields:
    """Return the fields of Nemotron 3 and 4 and of Minitron."""
    return {**_eps(source), "attention_bias": fields["attention_bias"], "hidden_act": "relu2"}
