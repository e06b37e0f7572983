"""The image processor of Cohere's Command A Vision with Pillow.

transformers has one with torchvision only.
"""

from __future__ import annotations

import numpy as np
from transformers import GotOcr2ImageProcessorPil
from transformers.image_utils import PILImageResampling, SizeDict


class Cohere2VisionImageProcessorPil(GotOcr2ImageProcessorPil):
    """An image is enlarged as little as possible to whole tiles; the last one shows all of it."""

    size = {"height": 512, "width": 512}
    crop_to_patches = True
    patch_size = 16
    """Side of a tile in tokens."""

    def crop_image_to_patches(
        self,
        image: np.ndarray,
        min_patches: int,
        max_patches: int,
        use_thumbnail: bool = True,
        patch_size: SizeDict | None = None,
        resample: PILImageResampling | None = None,
    ) -> list[np.ndarray]:
        """Return the tiles of an image [channels, height, width]."""
        assert patch_size is not None
        assert patch_size.height is not None
        side = patch_size.height
        columns, rows = _grid(image.shape[-2], image.shape[-1], side, max_patches)
        whole = SizeDict(height=rows * side, width=columns * side)
        canvas = self.resize(image, whole, resample=resample)
        tiles = [
            canvas[:, top : top + side, left : left + side]
            for top in range(0, rows * side, side)
            for left in range(0, columns * side, side)
        ]
        if use_thumbnail and len(tiles) > 1:
            tiles.append(self.resize(image, patch_size, resample=resample))
        return tiles


def _grid(height: int, width: int, side: int, max_tiles: int) -> tuple[int, int]:
    """Return columns and rows: the least enlargement, or else the least reduction."""
    counts = range(1, max_tiles + 1)
    grids = [
        (columns, rows) for columns in counts for rows in counts if columns * rows <= max_tiles
    ]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = {grid: min(grid[0] * side / width, grid[1] * side / height) for grid in grids}
    enlarging = [grid for grid in grids if scales[grid] >= 1]
    if enlarging:
        return min(enlarging, key=scales.__getitem__)
    return max(grids, key=scales.__getitem__)
