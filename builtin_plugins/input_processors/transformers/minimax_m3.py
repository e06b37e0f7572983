"""The image processor of MiniMax M3 with Pillow; transformers has one with torchvision only."""

from __future__ import annotations

from typing import Any, Final

from transformers import Qwen2VLImageProcessorPil

UNUSED_SIZE: Final = [672, 672]
"""What the published checkpoint has as `size`, and does not use."""


class MiniMaxM3VLImageProcessorPil(Qwen2VLImageProcessorPil):
    """That of Qwen2-VL with other limits of the number of pixels."""

    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": 451584}

    def __init__(self, **settings: Any) -> None:
        if settings.get("size") == UNUSED_SIZE:
            del settings["size"]
        super().__init__(**settings)
