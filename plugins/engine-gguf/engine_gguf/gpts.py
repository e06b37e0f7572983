"""What a Hugging Face config says of models of GPT's kind, whose fields have names of their own."""

from __future__ import annotations

from engine_gguf.given import Fields, Given


def _eps(given: Given) -> Fields:
    eps = given.settings.number("attention.layer_norm_epsilon", 1e-5)
    return dict.fromkeys(("layer_norm_epsilon", "layer_norm_eps", "norm_eps"), eps)


def gpt2(given: Given, fields: Fields) -> Fields:
    """Return GPT-2's facts; what places there are, the matrix of positions says."""
    positions = given.tensors.get("position_embd.weight")
    found = positions.shape[0] if positions is not None and len(positions.shape) == 2 else 0
    return {
        "n_embd": fields["hidden_size"],
        "n_layer": fields["num_hidden_layers"],
        "n_head": fields["num_attention_heads"],
        "n_inner": fields["intermediate_size"],
        "n_positions": found or fields["max_position_embeddings"],
        "max_position_embeddings": found or fields["max_position_embeddings"],
        **_eps(given),
    }


def gpt_bigcode(given: Given, fields: Fields) -> Fields:
    """Return StarCoder's facts: one head of keys and values for all."""
    return {**gpt2(given, fields), "multi_query": fields["num_key_value_heads"] == 1}


def gpt_neox(given: Given, fields: Fields) -> Fields:
    """Return GPT-NeoX's facts."""
    name = f"{given.settings.architecture}.use_parallel_residual"
    return {
        **_eps(given),
        "use_parallel_residual": given.settings.flag(name, True),
        "attention_bias": True,
    }


def bloom(given: Given, fields: Fields) -> Fields:
    """Return BLOOM's facts."""
    return {
        "n_layer": fields["num_hidden_layers"],
        "n_head": fields["num_attention_heads"],
        "seq_length": fields["max_position_embeddings"],
        **_eps(given),
    }


def mpt(given: Given, fields: Fields) -> Fields:
    """Return MPT's facts."""
    clipped = given.numbers(
        clip_qkv="attention.clamp_kqv", alibi_bias_max="attention.max_alibi_bias"
    )
    return {
        "d_model": fields["hidden_size"],
        "n_layers": fields["num_hidden_layers"],
        "n_heads": fields["num_attention_heads"],
        "max_seq_len": fields["max_position_embeddings"],
        "attn_config": {"alibi": True, **clipped},
        **_eps(given),
    }


def falcon(given: Given, fields: Fields) -> Fields:
    """Return Falcon's facts: the newer form has two norms in front of its parallel parts."""
    two = given.has("blk.0.attn_norm_2.weight")
    kv_heads = fields["num_key_value_heads"]
    return {
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": two or kv_heads > 1,
        "num_ln_in_parallel_attn": 2 if two else 1,
        "multi_query": kv_heads == 1,
        "parallel_attn": True,
        "bias": given.has("blk.0.attn_qkv.bias"),
        "alibi": False,
        "ffn_hidden_size": fields["intermediate_size"],
        **_eps(given),
    }


def phi(given: Given, fields: Fields) -> Fields:
    """Return the facts of Phi 1 to 2."""
    del fields
    return {
        **_eps(given),
        "hidden_act": "gelu_new",
        "qk_layernorm": given.has("blk.0.attn_q_norm.weight"),
    }


def nemotron(given: Given, fields: Fields) -> Fields:
    """Return the facts of Nemotron 3 and 4 and of Minitron."""
    return {**_eps(given), "attention_bias": fields["attention_bias"], "hidden_act": "relu2"}
