"""Tiny configs of encoders and of other models that are pooled, every particular feature switched
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.testing.tiny_configs import VOCAB, Tiny

_SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "num_labels": 3,
}
_GROUPED: Final = {**_SHAPE, "num_key_value_heads": 2}
_LOCAL: Final = {
    "full_attention": {"rope_type": "default", "rope_theta": 8000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
_BASES: Final[Mapping[str, Tiny]] = {
    "Bert": ("BertConfig", {**_SHAPE, "pad_token_id": 0}),
    "Roberta": ("RobertaConfig", {**_SHAPE, "pad_token_id": 1, "type_vocab_size": 1}),
    "XLMRoberta": ("XLMRobertaConfig", {**_SHAPE, "pad_token_id": 1, "type_vocab_size": 1}),
    "Electra": ("ElectraConfig", {**_SHAPE, "embedding_size": 32}),
    "Albert": (
        "AlbertConfig",
        {**_SHAPE, "embedding_size": 32, "num_hidden_groups": 2, "num_hidden_layers": 4},
    ),
    "MPNet": ("MPNetConfig", {**_SHAPE, "pad_token_id": 1}),
    "DistilBert": (
        "DistilBertConfig",
        {
            "vocab_size": VOCAB,
            "dim": 64,
            "hidden_dim": 96,
            "n_layers": 3,
            "n_heads": 4,
            "max_position_embeddings": 256,
            "num_labels": 3,
        },
    ),
    "DebertaV2": (
        "DebertaV2Config",
        {
            **_SHAPE,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 16,
            "max_relative_positions": 64,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "type_vocab_size": 2,
            "pooler_hidden_size": 64,
        },
    ),
    "ModernBert": (
        "ModernBertConfig",
        {
            **_SHAPE,
            "local_attention": 16,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "rope_parameters": _LOCAL,
            "pad_token_id": 0,
        },
    ),
    "EuroBert": (
        "EuroBertConfig",
        {
            **_GROUPED,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_pooling": "mean",
            "pad_token_id": 0,
        },
    ),
    "NomicBert": ("NomicBertConfig", {**_SHAPE}),
    "Gte": ("GteConfig", {**_SHAPE, "type_vocab_size": 2}),
    "JinaEmbeddingsV3": ("JinaEmbeddingsV3Config", {**_SHAPE, "pad_token_id": 1}),
}
POOLED: Final[Mapping[str, Tiny]] = {
    **{
        base + head: tiny
        for base, tiny in _BASES.items()
        for head in ("Model", "ForSequenceClassification")
    },
    **{base + "ForTokenClassification": tiny for base, tiny in _BASES.items()},
    "BertForMaskedLM": _BASES["Bert"],
    "T5EncoderModel": (
        "T5Config",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "d_kv": 24,
            "d_ff": 96,
            "num_layers": 3,
            "num_heads": 4,
            "feed_forward_proj": "gated-gelu",
            "relative_attention_num_buckets": 16,
            "relative_attention_max_distance": 40,
        },
    ),
    "Gemma3TextModel": (
        "Gemma3TextConfig",
        {
            **_GROUPED,
            "head_dim": 16,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 24,
            "use_bidirectional_attention": True,
        },
    ),
    **{
        model + head: (f"{model}Config", {**_GROUPED, "pad_token_id": 0, **more})
        for model, more in (("Llama", {}), ("Qwen2", {}), ("Qwen3", {"head_dim": 16}))
        for head in ("Model", "ForSequenceClassification", "ForTokenClassification")
    },
}
"""Architecture to its transformers config class and the facts of its tiny form."""
