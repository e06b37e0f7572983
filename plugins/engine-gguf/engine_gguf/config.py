"""Builds a Hugging Face config from the settings of a GGUF file: the fields of all architectures.

Setting names are llama.cpp's; field names are those that the architecture reads.
"""

from __future__ import annotations

from typing import Final

from core.api import ModelError, did_you_mean
from engine_gguf.architectures import ARCHITECTURES
from engine_gguf.config_source import ConfigSource, Fields
from engine_gguf.header import printable
from engine_gguf.settings import Settings

PER_LAYER: Final = frozenset(
    (
        "falcon-h1",
        "gemma4",
        "granitehybrid",
        "jamba",
        "lfm2",
        "lfm2moe",
        "mamba",
        "mamba2",
        "nemotron_h",
        "nemotron_h_moe",
    )
)
"""Architectures that state heads and widths per layer, 0 for layers without."""


def make_config(source: ConfigSource) -> Fields:
    """Return the config.

    Raises `ModelError` for an unsupported architecture or invalid settings.
    """
    name = source.settings.architecture
    if name not in ARCHITECTURES:
        raise ModelError(
            f"its architecture {name!r:.60} is not supported in GGUF "
            f"files{did_you_mean(name, ARCHITECTURES) or '.'} Supported: "
            f"{', '.join(sorted(ARCHITECTURES))}. Describe it with --hf-config-path if it is one "
            "of these under another name."
        )
    architecture, model_type, more = ARCHITECTURES[name]
    fields = {**_common(source), "architectures": [architecture], "model_type": model_type}
    return {**fields, **more(source, fields)}


def _common(source: ConfigSource) -> Fields:
    settings = source.settings
    per_layer = settings.architecture in PER_LAYER
    embedding = source.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(
            "token_embd.weight: expected a matrix; without it the file is no language model. Use "
            "another file."
        )
    hidden = settings.count("embedding_length")
    if per_layer:
        heads = settings.largest("attention.head_count", 1)
    else:
        heads = settings.count("attention.head_count")
    # MTP layers, which are not read
    mtp_layers = settings.count("nextn_predict_layers", 0, least=0)
    layers = settings.count("block_count") - mtp_layers
    if not 0 < layers <= len(source.tensors) or hidden != embedding.shape[1]:
        raise ModelError(
            f"its settings state {layers} layers of width {hidden}; the file has "
            f"{len(source.tensors)} tensors and an embedding of width {embedding.shape[1]}. Use "
            "another file."
        )
    _check_experts(source)
    head = settings.count("attention.key_length", max(1, hidden // heads))
    rotary_dim = settings.count("rope.dimension_count", head)
    rope: Fields = {
        "rope_type": "default",
        "rope_theta": settings.number("rope.freq_base", 10_000.0),
    }
    if rotary_dim != head:
        rope["partial_rotary_factor"] = rotary_dim / head
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": mtp_layers,
        "intermediate_size": _size(settings, "feed_forward_length", hidden, per_layer),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(settings, "attention.head_count_kv", heads, per_layer),
        "head_dim": head,
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon", 1e-6),
        "max_position_embeddings": settings.count("context_length", 2048),
        "vocab_size": embedding.shape[0],
        "attention_bias": source.has("blk.0.attn_q.bias") or source.has("blk.0.attn_qkv.bias"),
        "attention_out_bias": source.has("blk.0.attn_output.bias"),
        "mlp_bias": source.has("blk.0.ffn_up.bias"),
        "tie_word_embeddings": not source.has("output.weight"),
        "rope_parameters": {**rope, **_scaling(source)},
    }


def _check_experts(source: ConfigSource) -> None:
    """Raise `ModelError` if the number of experts contradicts the tensors.

    Experts allocate memory before they are loaded.
    """
    stated = source.settings.count("expert_count", 0, least=0)
    for name, tensor in source.tensors.items():
        if name.endswith("_exps.weight") and tensor.shape[0] != stated:
            raise ModelError(
                f"its settings state {stated} experts; {printable(name)} has {tensor.shape[0]}. "
                "Use another file."
            )


def _size(settings: Settings, name: str, default: int, per_layer: bool) -> int:
    return settings.largest(name, default) if per_layer else settings.count(name, default)


def _scaling(source: ConfigSource) -> Fields:
    """Return the RoPE scaling fields."""
    settings = source.settings
    context = settings.count("context_length", 2048)
    original = settings.count("rope.scaling.original_context_length", context)
    factors = source.factors.get("rope_freqs.weight")
    if factors is not None:  # as in Llama 3.1: the same for all lengths
        same = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        return {"rope_type": "longrope", "original_max_position_embeddings": original, **same}
    if "rope_factors_long.weight" in source.factors:
        return {
            "rope_type": "longrope",
            "short_factor": source.factors["rope_factors_short.weight"],
            "long_factor": source.factors["rope_factors_long.weight"],
            "original_max_position_embeddings": original,
            **source.numbers(attention_factor="rope.scaling.attn_factor"),
        }
    kind = settings.text(f"{settings.architecture}.rope.scaling.type", "none")
    if kind == "none":
        return {}
    scaling = {"rope_type": kind, "factor": settings.number("rope.scaling.factor", 1.0)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
        for name in ("beta_fast", "beta_slow"):
            if settings.own(f"rope.scaling.yarn_{name}") is not None:
                scaling[name] = settings.number(f"rope.scaling.yarn_{name}")
        scaling |= source.numbers(attention_factor="rope.scaling.yarn_attn_factor")
    return scaling
