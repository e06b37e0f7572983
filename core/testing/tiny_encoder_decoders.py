"""Tiny configs of models with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.testing.tiny_configs import SHAPE, VOCAB, Tiny

_T5: Final = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
}
_BART: Final = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 128,
    "scale_embedding": True,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_APART: Final = {
    "tie_word_embeddings": False,
    "share_encoder_decoder_embeddings": False,
    "decoder_vocab_size": 290,
    "bos_token_id": None,  # the others' are beyond it
    "eos_token_id": None,
}
_WHISPER: Final = {
    **{
        name: value
        for name, value in _BART.items()
        if name not in ("max_position_embeddings", "forced_eos_token_id")
    },
    "num_mel_bins": 10,
    "max_source_positions": 20,
    "max_target_positions": 128,
}

ENCODER_DECODERS: Final[Mapping[str, Tiny]] = {
    "T5ForConditionalGeneration": ("T5Config", {**_T5, "tie_word_embeddings": False}),
    "MT5ForConditionalGeneration": ("MT5Config", _T5),
    "UMT5ForConditionalGeneration": ("UMT5Config", {**_T5, "feed_forward_proj": "relu"}),
    "BartForConditionalGeneration": ("BartConfig", _BART),
    "MBartForConditionalGeneration": ("MBartConfig", {**_BART, "tie_word_embeddings": False}),
    "PLBartForConditionalGeneration": ("PLBartConfig", _BART),
    "MarianMTModel": ("MarianConfig", {**_BART, **_APART}),
    "PegasusForConditionalGeneration": ("PegasusConfig", {**_BART, "tie_word_embeddings": False}),
    "M2M100ForConditionalGeneration": ("M2M100Config", {**_BART, "pad_token_id": 1}),
    "BlenderbotForConditionalGeneration": (
        "BlenderbotConfig",
        {**_BART, "tie_word_embeddings": False},
    ),
    "BlenderbotSmallForConditionalGeneration": ("BlenderbotSmallConfig", _BART),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {**_WHISPER, "tie_word_embeddings": False},
    ),
}
"""Those that have an encoder, and so get two prompts."""

_BERT: Final = {**SHAPE, "is_decoder": True, "tie_word_embeddings": True}
_BERT_DECODERS: Final[Mapping[str, Tiny]] = {
    "BigBirdForCausalLM": (
        "BigBirdConfig",
        {**_BERT, "attention_type": "original_full", "rescale_embeddings": True},
    ),
    "MegatronBertForCausalLM": ("MegatronBertConfig", _BERT),
    "RemBertForCausalLM": (
        "RemBertConfig",
        {
            **_BERT,
            "tie_word_embeddings": False,
            "input_embedding_size": 40,
            "output_embedding_size": 56,
        },
    ),
    "RoFormerForCausalLM": ("RoFormerConfig", {**_BERT, "embedding_size": 48}),
    "GitForCausalLM": (
        "GitConfig",
        {
            **SHAPE,
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "image_size": 32,
            },
        },
    ),
}

DECODERS_ALONE: Final[Mapping[str, Tiny]] = {
    **_BERT_DECODERS,
    "BartForCausalLM": ("BartConfig", _BART),
    "MvpForCausalLM": ("MvpConfig", _BART),
    "MBartForCausalLM": ("MBartConfig", {**_BART, "tie_word_embeddings": False}),
    "PLBartForCausalLM": ("PLBartConfig", _BART),
    "MarianForCausalLM": ("MarianConfig", _BART),
    "PegasusForCausalLM": ("PegasusConfig", _BART),
    "BigBirdPegasusForCausalLM": ("BigBirdPegasusConfig", {**_BART, "use_bias": True}),
    "BlenderbotForCausalLM": ("BlenderbotConfig", {**_BART, "tie_word_embeddings": False}),
    "BlenderbotSmallForCausalLM": ("BlenderbotSmallConfig", _BART),
    "WhisperForCausalLM": ("WhisperConfig", _WHISPER),
    "TrOCRForCausalLM": (
        "TrOCRConfig",
        {k: v for k, v in _BART.items() if not k.startswith(("encoder", "forced"))},
    ),
}
"""Decoders of such models and of BERT's form, which continue one prompt."""
