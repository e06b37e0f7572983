"""MiniMax M3: an indexer selects blocks of keys for each KV head; experts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
import transformers

from builtin_plugins.input_processors.transformers.minimax_m3 import MiniMaxM3VLImageProcessorPil
from tests.builtin_plugins.models.vision.checkpoints.common import (
    TEXT,
    VisionModel,
    edit,
    save,
    save_parts,
    tokenizer,
)

IMAGE: Final = "]<]image[>["
TOKENS: Final = (
    *("<|endoftext|>", "]<]start of image[>[", "]<]end of image[>["),
    *(IMAGE, "]<]video[>["),
)


def minimax_m3(folder: Path) -> None:
    """MiniMax M3: 3 of 10 to 30 blocks of 4 keys, the last of them always."""
    own = tokenizer(list(TOKENS))
    config = transformers.MiniMaxM3VLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        text_config={
            **TEXT,
            "num_hidden_layers": 4,
            "intermediate_size": 24,
            "dense_intermediate_size": 96,
            "shared_intermediate_size": 40,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rotary_dim": 8,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
            "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
            "mlp_layer_types": ["dense", *["sparse"] * 3],
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 4,
            "index_topk_blocks": 3,
            "index_local_blocks": 1,
        },
        image_token_index=own.convert_tokens_to_ids(IMAGE),
        video_token_index=own.convert_tokens_to_ids("]<]video[>["),
        projector_hidden_size=48,
    )
    save(transformers.MiniMaxM3SparseForConditionalGeneration(config), folder)
    edit(folder, _correct_scores)
    processor = MiniMaxM3VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=256, max_pixels=4096
    )
    save_parts(folder, processor, own, IMAGE, processor_class="MiniMaxM3VLProcessor")


def _correct_scores(tensors: dict[str, torch.Tensor]) -> None:
    """Let the biases of experts change which are chosen."""
    generator = torch.Generator().manual_seed(7)
    for name, tensor in tensors.items():
        if name.endswith("e_score_correction_bias"):
            tensors[name] = 0.3 * torch.randn(tensor.shape, generator=generator)


MODELS: Final = {
    "minimax_m3": VisionModel(minimax_m3, IMAGE, two_ranks=True, blocks=(160, 100, 60))
}
