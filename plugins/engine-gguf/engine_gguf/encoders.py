"""What a Hugging Face config says of encoders, and how a model's texts are pooled, out of the
settings of a GGUF file.
"""

from __future__ import annotations

from typing import Final

from core.api import ModelError
from core.model_spec.pooling import SentenceFacts
from engine_gguf.given import Fields, Given
from engine_gguf.settings import Settings

_POOLERS: Final = {1: "mean", 2: "cls", 3: "last"}
"""By llama.cpp's numbers; 0 is one vector for each token, 4 a score of two texts."""
_NONE = 0
_RANK = 4
ENCODERS: Final = frozenset(("bert", "nomic-bert", "modern-bert", "eurobert", "gemma-embedding"))
"""Those that make no tokens, whatever the file says of pooling."""


def sentence(settings: Settings) -> SentenceFacts | None:
    """Return how texts are pooled; None for a model that generates.

    Raises `ModelError` for a way that is not known.
    """
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
            "it scores pairs of texts (pooling_type 4), which is not read from GGUF files. Take "
            "the checkpoint."
        )
    return SentenceFacts(pooler=_POOLERS.get(stated), normalize=True)


def _alike(given: Given, fields: Fields) -> Fields:
    types = given.tensors.get("token_types.weight")
    return {
        "layer_norm_eps": given.settings.number("attention.layer_norm_epsilon", 1e-12),
        "type_vocab_size": types.shape[0] if types is not None else 0,
        "hidden_act": "gelu",
        "max_position_embeddings": fields["max_position_embeddings"],
    }


def bert(given: Given, fields: Fields) -> Fields:
    """Return BERT's facts, or those of RoBERTa's kind, whose converter leaves the first rows of
    positions out.
    """
    positions = given.tensors.get("position_embd.weight")
    places = {} if positions is None else {"max_position_embeddings": positions.shape[0]}
    return {**_alike(given, fields), **places, "position_embedding_type": "absolute"}


def nomic_bert(given: Given, fields: Fields) -> Fields:
    """Return Nomic BERT's facts."""
    return {
        **_alike(given, fields),
        "rotary_emb_base": given.settings.number("rope.freq_base", 1000.0),
        "rotary_emb_fraction": 1.0,
        "qkv_proj_bias": given.has("blk.0.attn_qkv.bias"),
    }


def modern_bert(given: Given, fields: Fields) -> Fields:
    """Return ModernBERT's facts: the first layer of every three sees all, unless the file says
    otherwise.
    """
    settings = given.settings
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
        "norm_bias": given.has("blk.0.ffn_norm.bias"),
        "attention_bias": given.has("blk.0.attn_qkv.bias"),
        "mlp_bias": given.has("blk.0.ffn_up.bias"),
        "local_attention": settings.count("attention.sliding_window", 128),
        "global_attn_every_n_layers": settings.count("attention.sliding_window_pattern", 3),
        "hidden_activation": settings.text(f"{settings.architecture}.hidden_activation", "gelu"),
        "layer_types": None,
        "rope_parameters": ropes,
        "max_position_embeddings": fields["max_position_embeddings"],
    }


def eurobert(given: Given, fields: Fields) -> Fields:
    """Return EuroBERT's facts."""
    del given, fields
    return {"classifier_pooling": "late"}
