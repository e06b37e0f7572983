"""BLIP-2: queries read an image, OPT reads their states."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers
from tokenizers.processors import TemplateProcessing

from tests.builtin_plugins.models.vision.checkpoints.common import VOCAB, save, tokenizer

PICTURE: Final = "<image>"
START: Final = "</s>"


def blip2(folder: Path) -> None:
    """BLIP-2 with OPT: five queries, and a start token after them."""
    own = tokenizer(
        [START, PICTURE], bos_token=START, extra_special_tokens={"image_token": PICTURE}
    )
    start = own.convert_tokens_to_ids(START)
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, start)]
    )
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Blip2Config(
        vision_config={
            **shape,
            "hidden_size": 32,
            "intermediate_size": 48,
            "image_size": 28,
            "patch_size": 7,
        },
        qformer_config={
            **shape,
            "vocab_size": 8,
            "hidden_size": 48,
            "intermediate_size": 64,
            "cross_attention_frequency": 2,
            "pad_token_id": 0,
        },
        text_config={
            **shape,
            "model_type": "opt",
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "word_embed_proj_dim": 64,
            "ffn_dim": 96,
            "max_position_embeddings": 256,
            "bos_token_id": start,
            "eos_token_id": start,
        },
        num_query_tokens=5,
        image_token_index=own.convert_tokens_to_ids(PICTURE),
    )
    save(transformers.Blip2ForConditionalGeneration(config), folder)
    processor = transformers.Blip2Processor(
        transformers.BlipImageProcessorPil(size={"height": 28, "width": 28}),
        own,
        num_query_tokens=5,
    )
    processor.save_pretrained(folder)
