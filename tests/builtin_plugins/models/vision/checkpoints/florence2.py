"""Florence-2: a tower of windows and channel groups, and BART."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import VOCAB, save, tokenizer

PICTURE: Final = "<image>"
SPECIAL: Final = ("</s>", "<s>", "<pad>", PICTURE)
EDGE: Final = 32
NUM_IMAGE_TOKENS: Final = 17
"""16 places and their mean."""


def florence2(folder: Path) -> None:
    """Florence-2: its encoder reads the image and the task."""
    own = tokenizer(list(SPECIAL), bos_token="<s>", extra_special_tokens={"image_token": PICTURE})
    start = own.convert_tokens_to_ids("</s>")
    config = transformers.Florence2Config(
        vision_config={
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [16, 32],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "window_size": 4,
            "projection_dim": 64,
            "max_temporal_embeddings": 5,
            "max_position_embeddings": 10,
        },
        text_config={
            "model_type": "bart",
            "vocab_size": VOCAB,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "max_position_embeddings": 256,
            "bos_token_id": own.bos_token_id,
            "eos_token_id": start,
            "pad_token_id": own.convert_tokens_to_ids("<pad>"),
            "decoder_start_token_id": start,
            "forced_eos_token_id": None,
        },
        image_token_id=own.convert_tokens_to_ids(PICTURE),
    )
    model = transformers.Florence2ForConditionalGeneration(config)
    model.generation_config.decoder_start_token_id = start
    model.generation_config.forced_eos_token_id = None
    save(model, folder)
    size = {"height": EDGE, "width": EDGE}
    processor = transformers.Florence2Processor(
        image_processor=transformers.CLIPImageProcessorPil(
            size=size, crop_size=size, do_center_crop=False, image_seq_length=NUM_IMAGE_TOKENS
        ),
        tokenizer=own,
    )
    processor.save_pretrained(folder)
