"""The image processor of Fuyu, which transformers can use with torchvision only."""

from __future__ import annotations

from typing import Any

import torch
import transformers


class FuyuImageProcessorPil(transformers.FuyuImageProcessorPil):
    """transformers' image processor; its processor of prompts cuts tensors into patches."""

    def patchify_image(self, image: Any, patch_size: Any = None) -> Any:
        """Return patches [patches, values] of an image [channels, height, width]."""
        cut: Any = super().patchify_image
        pixels = image.squeeze(0) if image.ndim > 3 else image
        return torch.from_numpy(cut(pixels.numpy(), patch_size))
