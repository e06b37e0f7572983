"""The image processor of Phi-4-multimodal with Pillow; transformers' own needs torchvision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.nn.functional import interpolate
from transformers import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, SizeDict
from transformers.processing_utils import ImagesKwargs

WHITE: Final = 255
MIN_SIDE: Final = 10
"""Smallest side of an image that was fitted into its tiles, in pixels."""


class Phi4ImagesKwargs(ImagesKwargs, total=False):
    """Settings of a call besides those of all image processors."""

    patch_size: int
    dynamic_hd: int


class Phi4MultimodalImageProcessorPil(PilBackend):
    """An image becomes one tile with all of it, and a grid of up to `dynamic_hd` tiles.

    It is fitted into the top left corner of the grid; patches of the rest are masked.
    """

    resample = PILImageResampling.BICUBIC
    size = {"height": 448, "width": 448}
    patch_size = 14
    dynamic_hd = 36
    image_mean = [0.5, 0.5, 0.5]
    image_std = [0.5, 0.5, 0.5]
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True
    valid_kwargs = Phi4ImagesKwargs
    model_input_names = ["image_pixel_values", "image_sizes", "image_attention_mask"]

    def _preprocess(  # type: ignore[override]
        self,
        images: Sequence[np.ndarray],
        *,
        size: SizeDict,
        patch_size: int,
        dynamic_hd: int,
        return_tensors: Any,
        **options: Any,
    ) -> Any:
        """Return tiles, masks of patches, sizes of grids in pixels and numbers of tokens."""
        side = size.height
        assert side is not None
        tiles = []
        masks = []
        sizes = []
        for image in images:
            canvas, fitted = self._canvas(image, side, dynamic_hd)
            values = self._normalized(canvas, options)
            whole = interpolate(values[None], (side, side), mode="bicubic", align_corners=False)
            patches = _patch_mask(canvas.shape[-2:], fitted, patch_size)
            tiles.append(torch.cat([whole, _cut(values, side)]))
            per_side = side // patch_size
            everything = torch.ones(1, per_side, per_side, dtype=torch.int64)
            masks.append(torch.cat([everything, _cut(patches[None], per_side)[:, 0]]))
            sizes.append(list(canvas.shape[-2:]))
        count = max(map(len, tiles))
        data = {
            "image_pixel_values": torch.stack([_padded(each, count, 0) for each in tiles]),
            "image_sizes": torch.tensor(sizes),
            "image_attention_mask": torch.stack([_padded(each, count, 1) for each in masks]),
            "num_img_tokens": [
                _num_tokens(mask, height // side)
                for mask, (height, _) in zip(masks, sizes, strict=True)
            ],
        }
        return BatchFeature(data=data, tensor_type=return_tensors)

    def _canvas(
        self, image: np.ndarray, side: int, max_tiles: int
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """Return the image on a canvas of whole tiles, and its height and width there."""
        height, width = image.shape[-2:]
        columns, rows = _grid(height, width, side, max_tiles)
        scale_x = columns * side / width
        scale_y = rows * side / height
        if scale_x < scale_y:
            fitted = int(height * scale_x), columns * side
        else:
            fitted = rows * side, int(width * scale_y)
        if min(fitted) < MIN_SIDE:
            raise ValueError(f"the aspect ratio is very extreme {fitted[::-1]}")
        target = SizeDict(height=fitted[0], width=fitted[1])
        resized = self.resize(image, target, PILImageResampling.BILINEAR)
        canvas = np.full((image.shape[0], rows * side, columns * side), WHITE, resized.dtype)
        canvas[:, : fitted[0], : fitted[1]] = resized
        return canvas, fitted

    def _normalized(self, canvas: np.ndarray, options: dict[str, Any]) -> torch.Tensor:
        """Return an image rescaled and normalized."""
        values = canvas
        if options["do_rescale"]:
            values = self.rescale(values, options["rescale_factor"])
        if options["do_normalize"]:
            values = self.normalize(values, options["image_mean"], options["image_std"])
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _grid(height: int, width: int, side: int, max_tiles: int) -> tuple[int, int]:
    """Return columns and rows: those that hold the image, or the nearest in proportion."""
    columns = math.ceil(width / side)
    rows = math.ceil(height / side)
    if columns * rows <= max_tiles:
        return columns, rows
    grids = {  # in transformers' order: of equal ones, the last is taken
        (i, j)
        for n in range(1, max_tiles + 1)
        for i in range(1, n + 1)
        for j in range(1, n + 1)
        if i * j <= max_tiles
    }
    best = (1, 1)
    least = math.inf
    for grid in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - grid[0] / grid[1])
        is_large = width * height > 0.5 * side * side * grid[0] * grid[1]
        if difference < least or (difference == least and is_large):
            best = grid
        least = min(least, difference)
    return best


def _patch_mask(canvas: Sequence[int], fitted: Sequence[int], patch: int) -> torch.Tensor:
    """Return a canvas's patches: 1 for those with a part of the image, 0 for padding."""
    mask = torch.ones(canvas[0] // patch, canvas[1] // patch, dtype=torch.int64)
    padded_rows, padded_columns = (
        (whole - own) // patch for whole, own in zip(canvas, fitted, strict=True)
    )
    mask[mask.shape[0] - padded_rows :] = 0
    mask[:, mask.shape[1] - padded_columns :] = 0
    return mask


def _cut(values: torch.Tensor, side: int) -> torch.Tensor:
    """Return the tiles [tiles, channels, side, side] of values [channels, height, width]."""
    channels, height, width = values.shape
    cut = values.reshape(channels, height // side, side, width // side, side)
    return cut.permute(1, 3, 0, 2, 4).reshape(-1, channels, side, side)


def _padded(values: torch.Tensor, count: int, fill: int) -> torch.Tensor:
    """Return tiles, followed by filled ones."""
    return torch.cat([values, values.new_full((count - len(values), *values.shape[1:]), fill)])


def _num_tokens(mask: torch.Tensor, rows: int) -> int:
    """Return the tokens of an image: one for two by two patches, one after each line, and one
    before the tile with all of it.
    """
    tiles = mask[1:, ::2, ::2]
    lines = tiles.reshape(rows, -1, *tiles.shape[1:])[:, 0, :, 0]
    per_side = tiles.shape[-1]
    return per_side * (per_side + 1) + 1 + int(tiles.sum()) + int(lines.sum())
