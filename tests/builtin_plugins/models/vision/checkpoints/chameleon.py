"""Chameleon: images as tokens of its vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VOCAB,
    VisionModel,
    save,
    tokenizer,
)

TOKENS: Final = ("<|endoftext|>", "<image>", "<racm3:break>", "<eoss>", "<sep>")
NUM_CODES: Final = 32
SIDE: Final = 8


def chameleon(folder: Path) -> None:
    """Chameleon: norms of each head, and image tokens that it never writes."""
    own = tokenizer(list(TOKENS), sep_token="<sep>")
    codes = [f"IMGIMG{''.join('ABCDEFGHIJ'[int(c)] for c in str(n))}Z" for n in range(NUM_CODES)]
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = transformers.ChameleonConfig(
        **text,
        pad_token_id=0,
        vocabulary_map={
            "<image>": own.convert_tokens_to_ids("<image>"),
            **{code: VOCAB - NUM_CODES + n for n, code in enumerate(codes)},
        },
        vq_config={
            "embed_dim": 16,
            "num_embeddings": NUM_CODES,
            "latent_channels": 16,
            "resolution": SIDE,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
        },
    )
    save(transformers.ChameleonForConditionalGeneration(config), folder, deep_convolutions=True)
    size = {"height": SIDE, "width": SIDE}
    transformers.ChameleonProcessor(
        image_processor=transformers.ChameleonImageProcessorPil(size=size, crop_size=size),
        tokenizer=own,
        image_seq_length=(SIDE // 2) ** 2,
    ).save_pretrained(folder)


MODELS: Final = {"chameleon": VisionModel(chameleon, "<image>")}
