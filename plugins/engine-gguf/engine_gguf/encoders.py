"""Config fields and pooling of encoders, from the settings of a GGUF file."""

from __future__ import annotations

from typing import Final

from core.api import ModelError
from core.model_spec.pooling import SentenceFacts
from engine_gguf.config_source import ConfigSource, Fields
from engine_gguf.settings import Settings

_POOLERS: Final = {1: "mean", 2: "cls", 3: "last"}
"""By llama.cpp's number; 0 is one vector per token, 4 a score of a text pair."""
_NONE = 0
_RANK = 4
ENCODERS: Final = frozenset(("bert", "nomic-bert", "modern-bert", "eurobert", "gemma-embedding"))
"""Architectures that generate no tokens, whatever pooling the file states."""


def sentence(settings: Settings) -> SentenceFacts | None:
    """Return the pooling; None for a generative model. Raises `ModelError` for an unknown one."""
    stated = settings.own("pooling_type")
    if stated is None:
        return SentenceFacts(normalize=True) if settings.architecture in ENCODERS else None
    if (
        isinstance(stated, bool)
        or not isinstance(stated, int)
        or stated not in (*_POOLERS, _NONE, _RANK)
    ):
        raise settings.wrong(f"{settings.architecture}.pooling_type", stated, "0 to 4")
    if stated == _RANK:
        raise ModelError(
            "pooling_type: got 4 (a score of text pairs); expected 0 to 3 in GGUF files. Use the "
            "original checkpoint."
        )
    return SentenceFacts(pooler=_POOLERS.get(stated), normalize=True)


def _common(source: ConfigSource, fields: Fields) -> Fields:
    types = source.tensors.get("token_types.weight")
    return {
        "layer_norm_eps": source.settings.number("attention.layer_norm_epsilon", 1e-12),
        "type_vocab_size": types.shape[0] if types is not None else 0,
        "hidden_act": "gelu",
        "max_position_embeddings": fields["max_position_embeddings"],
    }


def bert(source: ConfigSource, fields: Fields) -> Fields:
    """Return BERT's fields, or RoBERTa's, which drops its first position rows on conversion."""
    positions = source.tensors.get("position_embd.weight")
    lengths = {} if positions is None else {"max_position_embeddings": positions.shape[0]}
    return {**_common(source, fields), **lengths, "position_embedding_type": "absolute"}


def nomic_bert(source: ConfigSource, fields: Fields) -> Fields:
    """Return Nomic BERT's fields."""
    return {
        **_common(source, fields),
        "hidden_act": "silu",
        "rotary_emb_base": source.settings.number("rope.freq_base", 1000.0),
        "rotary_emb_fraction": 1.0,
        "qkv_proj_bias": source.has("blk.0.attn_qkv.bias"),
    }


def modern_bert(source: ConfigSource, fields: Fields) -> Fields:
    """Return ModernBERT's fields; by default every third layer has full attention."""
    settings = source.settings
    full = settings.number("rope.freq_base", 160_000.0)
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": full},
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": settings.number("rope.freq_base_swa", 10_000.0),
        },
    }
    return {
        "norm_eps": settings.number("attention.layer_norm_epsilon", 1e-5),
        "norm_bias": source.has("blk.0.ffn_norm.bias"),
        "attention_bias": source.has("blk.0.attn_qkv.bias"),
        "mlp_bias": source.has("blk.0.ffn_up.bias"),
        "local_attention": settings.count("attention.sliding_window", 128),
        "global_attn_every_n_layers": settings.count("attention.sliding_window_pattern", 3),
        "hidden_activation": settings.text(f"{settings.architecture}.hidden_activation", "gelu"),
        "layer_types": None,
        "rope_parameters": ropes,
        "max_position_embeddings": fields["max_position_embeddings"],
    }


def eurobert(source: ConfigSource, fields: Fields) -> Fields:
    """Return EuroBERT's fields."""
    del source, fields
    return {"classifier_pooling": "late"}
