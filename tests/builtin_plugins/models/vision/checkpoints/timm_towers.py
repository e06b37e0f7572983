"""Models with towers of timm, which is not installed for all runs of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

GEMMA: Final = {
    "image_token": "<image_soft_token>",
    "boi_token": "<start_of_image>",
    "audio_token": "<audio_soft_token>",
    "boa_token": "<start_of_audio>",
    "eoi_token": "<end_of_image>",
    "eoa_token": "<end_of_audio>",
}
"""The last two are beyond the vocabulary of the text."""
AUDIO: Final = {
    "hidden_size": 16,
    "input_feat_size": 16,
    "conf_num_attention_heads": 2,
    "conf_num_hidden_layers": 1,
    "sscp_conv_channel_size": (4, 4),
    "vocab_size": 1,
}
"""The part for audio, which is not used."""


def gemma3n(folder: Path) -> None:
    """Gemma 3n: four streams, embeddings for each layer, shared keys and values."""
    special = ["<eos>", "<bos>", "<pad>", "<|im_start|>", "<|im_end|>", *GEMMA.values()]
    own = tokenizer(special, extra_special_tokens=GEMMA)
    ids = own.convert_tokens_to_ids
    offset = ids("<end_of_image>")
    config = transformers.Gemma3nConfig(
        vision_config={
            "architecture": "mobilenetv5_300m_enc",
            "model_args": {"channel_multiplier": 0.05, "msfa_output_resolution": 4},
            "vocab_size": 1,
            "vocab_offset": offset,
        },
        audio_config={**AUDIO, "vocab_offset": offset + 1},
        text_config={
            **TEXT,
            "vocab_size": len(own),
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 12,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": offset,
            "num_kv_shared_layers": 2,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
            "pad_token_id": ids("<pad>"),
        },
        vision_soft_tokens_per_image=16,
        image_token_id=ids("<image_soft_token>"),
        boi_token_id=ids("<start_of_image>"),
        eoi_token_id=offset,
        audio_token_id=ids("<audio_soft_token>"),
        boa_token_id=ids("<start_of_audio>"),
        eoa_token_id=offset + 1,
    )
    model = transformers.Gemma3nForConditionalGeneration(config)
    save(model, folder, deep_convolutions=True)
    image_processor = transformers.SiglipImageProcessorPil(size={"height": 64, "width": 64})
    save_parts(
        folder,
        image_processor,
        own,
        "<image_soft_token>",
        processor_class="Gemma3nProcessor",
        image_seq_length=16,
    )


MODELS: Final = {
    "gemma3n": VisionModel(gemma3n, "<image_soft_token>", needs="timm", blocks=(16, 18, 20)),
}
