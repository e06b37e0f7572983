"""Phi-4-multimodal: tiles with masks of padding, a tower in the embeddings, and one of audio."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import transformers

from builtin_plugins.input_processors.transformers.phi4_multimodal import (
    Phi4MultimodalImageProcessorPil,
)
from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    save,
    save_parts,
    tokenizer,
)

IMAGE: Final = "<|endoftext10|>"
AUDIO: Final = "<|endoftext11|>"
SIDE: Final = 16


def phi4_multimodal(folder: Path) -> None:
    """Phi-4-multimodal: fused projections, partial and long rotary positions."""
    tokens = {"image_token": IMAGE, "audio_token": AUDIO}
    own = tokenizer(["<|endoftext|>", IMAGE, AUDIO], extra_special_tokens=tokens)
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    config = transformers.Phi4MultimodalConfig(
        **{**text, "eos_token_id": 1, "pad_token_id": 0},
        original_max_position_embeddings=512,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": SIDE,
            "crop_size": SIDE,
            "patch_size": 4,
            "image_token_id": own.convert_tokens_to_ids(IMAGE),
        },
        audio_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_blocks": 1,
            "num_attention_heads": 2,
            "ext_pw_out_channel": 16,
            "depthwise_separable_out_channel": 16,
            "nemo_conv_channels": 8,
            "audio_token_id": own.convert_tokens_to_ids(AUDIO),
        },
    )
    save(transformers.Phi4MultimodalForCausalLM(config), folder)
    size = {"height": SIDE, "width": SIDE}
    image_processor = Phi4MultimodalImageProcessorPil(size=size, patch_size=4, dynamic_hd=4)
    save_parts(folder, image_processor, own, IMAGE, processor_class="Phi4MultimodalProcessor")


MODELS: Final = {"phi4_multimodal": VisionModel(phi4_multimodal, IMAGE, two_ranks=True)}
