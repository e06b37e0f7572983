"""What a Hugging Face config says, out of the settings of a GGUF file: what all architectures have.

Names of settings are llama.cpp's; fields are those that the architecture here reads.
"""

from __future__ import annotations

from typing import Final

from core.api import ModelError, did_you_mean
from engine_gguf.families import ARCHITECTURES
from engine_gguf.given import Fields, Given
from engine_gguf.header import shown
from engine_gguf.settings import Settings

LAYERED: Final = frozenset(
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
"""Architectures that state heads and widths layer by layer, 0 for layers without."""


def make_config(given: Given) -> Fields:
    """Return the config.

    Raises `ModelError` for an architecture that is not read, or facts that cannot be.
    """
    name = given.settings.architecture
    if name not in ARCHITECTURES:
        raise ModelError(
            f"its architecture {name!r:.60} is not read from GGUF "
            f"files{did_you_mean(name, ARCHITECTURES) or '.'} Read: "
            f"{', '.join(sorted(ARCHITECTURES))}. Describe it with --hf-config-path if it is one "
            "of these under another name."
        )
    architecture, model_type, more = ARCHITECTURES[name]
    fields = {**_common(given), "architectures": [architecture], "model_type": model_type}
    return {**fields, **more(given, fields)}


def _common(given: Given) -> Fields:
    settings = given.settings
    layered = settings.architecture in LAYERED
    embedding = given.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(
            "it has no matrix token_embd.weight, so it is no language model. Take another file."
        )
    hidden = settings.count("embedding_length")
    heads = (
        settings.largest("attention.head_count", 1)
        if layered
        else settings.count("attention.head_count")
    )
    further = settings.count(
        "nextn_predict_layers", 0, least=0
    )  # they guess tokens, and are not read
    layers = settings.count("block_count") - further
    if not 0 < layers <= len(given.tensors) or hidden != embedding.shape[1]:
        raise ModelError(
            f"its settings say {layers} layers of width {hidden}, and it has {len(given.tensors)} "
            "tensors and an embedding of "
            f"width {embedding.shape[1]}. Take another file."
        )
    _check_experts(given)
    head = settings.count("attention.key_length", max(1, hidden // heads))
    turned = settings.count("rope.dimension_count", head)
    rope: Fields = {
        "rope_type": "default",
        "rope_theta": settings.number("rope.freq_base", 10_000.0),
    }
    if turned != head:
        rope["partial_rotary_factor"] = turned / head
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": further,
        "intermediate_size": _size(settings, "feed_forward_length", hidden, layered),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(settings, "attention.head_count_kv", heads, layered),
        "head_dim": head,
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon", 1e-6),
        "max_position_embeddings": settings.count("context_length", 2048),
        "vocab_size": embedding.shape[0],
        "attention_bias": given.has("blk.0.attn_q.bias") or given.has("blk.0.attn_qkv.bias"),
        "attention_out_bias": given.has("blk.0.attn_output.bias"),
        "mlp_bias": given.has("blk.0.ffn_up.bias"),
        "tie_word_embeddings": not given.has("output.weight"),
        "rope_parameters": {**rope, **_scaling(given)},
    }


def _check_experts(given: Given) -> None:
    """Raise `ModelError` where the settings say another number of experts than there are: each
    takes memory before it is read.
    """
    stated = given.settings.count("expert_count", 0, least=0)
    for name, tensor in given.tensors.items():
        if name.endswith("_exps.weight") and tensor.shape[0] != stated:
            raise ModelError(
                f"its settings say {stated} experts, and {shown(name)} has {tensor.shape[0]}. Take "
                "another file."
            )


def _size(settings: Settings, name: str, default: int, layered: bool) -> int:
    return settings.largest(name, default) if layered else settings.count(name, default)


def _scaling(given: Given) -> Fields:
    """Return how rotary positions are stretched."""
    settings = given.settings
    context = settings.count("context_length", 2048)
    original = settings.count("rope.scaling.original_context_length", context)
    factors = given.factors.get("rope_freqs.weight")
    if factors is not None:  # as Llama 3.1 has them: the same whatever the length
        same = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        return {"rope_type": "longrope", "original_max_position_embeddings": original, **same}
    if "rope_factors_long.weight" in given.factors:
        return {
            "rope_type": "longrope",
            "short_factor": given.factors["rope_factors_short.weight"],
            "long_factor": given.factors["rope_factors_long.weight"],
            "original_max_position_embeddings": original,
            **given.numbers(attention_factor="rope.scaling.attn_factor"),
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
        scaling |= given.numbers(attention_factor="rope.scaling.yarn_attn_factor")
    return scaling
