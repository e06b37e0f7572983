"""The image processor of LFM2-VL with Pillow; transformers has one with torchvision only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, SizeDict
from transformers.processing_utils import ImagesKwargs
from transformers.utils.constants import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD


class Lfm2VlImagesKwargs(ImagesKwargs, total=False):
    """Settings of a call besides those of all image processors."""

    downsample_factor: int
    do_image_splitting: bool
    min_tiles: int
    max_tiles: int
    use_thumbnail: bool
    min_image_tokens: int
    max_image_tokens: int
    encoder_patch_size: int
    tile_size: int
    max_pixels_tolerance: float
    return_row_col_info: bool


class Lfm2VlImageProcessorPil(PilBackend):
    """A large image becomes tiles and a small image of the whole; patches are padded to a number.

    Sizes of small images are whole numbers of tokens, within limits.
    """

    downsample_factor = 2
    do_image_splitting = True
    min_tiles = 2
    max_tiles = 10
    use_thumbnail = True
    min_image_tokens = 64
    max_image_tokens = 256
    encoder_patch_size = 16
    tile_size = 512
    max_pixels_tolerance = 2.0
    do_resize = True
    size = {"height": 512, "width": 512}
    resample = PILImageResampling.BILINEAR
    do_rescale = True
    do_normalize = True
    do_pad = True
    do_convert_rgb = True
    return_row_col_info = False
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    valid_kwargs = Lfm2VlImagesKwargs
    model_input_names = ["pixel_values", "pixel_attention_mask", "spatial_shapes"]

    def _preprocess(  # type: ignore[override]
        self, images: Sequence[np.ndarray], *, return_tensors: Any, **options: Any
    ) -> Any:
        """Return the patches of all crops, which of them are real, and the crops' grids."""
        patch = options["encoder_patch_size"]
        token = patch * options["downsample_factor"]
        length = options["max_image_tokens"] * options["downsample_factor"] ** 2
        if options["do_image_splitting"]:
            length = max(length, (options["tile_size"] // patch) ** 2)
        found: dict[str, list[Any]] = {
            name: []
            for name in (*self.model_input_names, "image_rows", "image_cols", "image_sizes")
        }
        for image in images:
            size = _small_size(image, token, options)
            columns, rows = _tiles(image, token, options)
            for crop in self._crops(image, size, columns, rows, options):
                patches = _patches(self._normalized(crop, options), patch)
                found["pixel_values"].append(np.pad(patches, ((0, length - len(patches)), (0, 0))))
                found["pixel_attention_mask"].append(np.arange(length) < len(patches))
                found["spatial_shapes"].append([side // patch for side in crop.shape[-2:]])
            found["image_rows"].append(rows)
            found["image_cols"].append(columns)
            found["image_sizes"].append(list(size))
        data: dict[str, Any] = {
            "pixel_values": torch.from_numpy(np.stack(found["pixel_values"]).astype(np.float32)),
            "pixel_attention_mask": torch.from_numpy(
                np.stack(found["pixel_attention_mask"]).astype(np.int32)
            ),
            "spatial_shapes": torch.tensor(found["spatial_shapes"]),
        }
        if options["return_row_col_info"]:
            data |= {name: found[name] for name in ("image_rows", "image_cols", "image_sizes")}
        return BatchFeature(data=data, tensor_type=return_tensors)

    def _crops(
        self,
        image: np.ndarray,
        size: tuple[int, int],
        columns: int,
        rows: int,
        options: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """Return the tiles of an image, and a small one of the whole."""
        resample = options["resample"]
        small = SizeDict(height=size[0], width=size[1])
        if columns * rows == 1:
            return [self.resize(image, small, resample=resample)]
        side = options["tile_size"]
        whole = SizeDict(height=rows * side, width=columns * side)
        canvas = self.resize(image, whole, resample=resample)
        tiles = [
            canvas[:, top : top + side, left : left + side]
            for top in range(0, rows * side, side)
            for left in range(0, columns * side, side)
        ]
        if options["use_thumbnail"]:
            tiles.append(self.resize(image, small, resample=resample))
        return tiles

    def _normalized(self, image: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
        if options["do_rescale"]:
            image = self.rescale(image, options["rescale_factor"])
        if options["do_normalize"]:
            image = self.normalize(image, options["image_mean"], options["image_std"])
        return image


def _small_size(image: np.ndarray, token: int, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return height and width of an image as one crop, with its number of tokens in the limits."""
    height, width = image.shape[-2:]
    least = options["min_image_tokens"] * token**2
    max_pixels = options["max_image_tokens"] * token**2
    sides = _rounded(height, width, token)
    if sides[0] * sides[1] > max_pixels:
        factor = math.sqrt(height * width / max_pixels)
        return (
            max(token, math.floor(height / factor / token) * token),
            max(token, math.floor(width / factor / token) * token),
        )
    if sides[0] * sides[1] < least:
        factor = math.sqrt(least / (height * width))
        return math.ceil(height * factor / token) * token, math.ceil(width * factor / token) * token
    return sides


def _rounded(height: int, width: int, token: int) -> tuple[int, int]:
    """Return the sides as whole numbers of tokens, at least one."""
    return max(token, round(height / token) * token), max(token, round(width / token) * token)


def _tiles(image: np.ndarray, token: int, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return columns and rows of tiles; (1, 1) for an image that is not split."""
    height, width = image.shape[-2:]
    sides = _rounded(height, width, token)
    limit = options["max_image_tokens"] * token**2 * options["max_pixels_tolerance"]
    if not options["do_image_splitting"] or sides[0] * sides[1] <= limit:
        return 1, 1
    counts = range(1, options["max_tiles"] + 1)
    grids = [
        (columns, rows)
        for columns in counts
        for rows in counts
        if options["min_tiles"] <= columns * rows <= options["max_tiles"]
    ]
    best = (1, 1)
    nearest = math.inf
    for grid in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(width / height - grid[0] / grid[1])
        area = options["tile_size"] ** 2 * grid[0] * grid[1]
        if distance < nearest or (distance == nearest and height * width > 0.5 * area):
            best = grid
        nearest = min(nearest, distance)
    return best


def _patches(image: np.ndarray, side: int) -> np.ndarray:
    """Return [patches, side * side * channels] of an image [channels, height, width]."""
    channels, height, width = image.shape
    cut = image.reshape(channels, height // side, side, width // side, side)
    return cut.transpose(1, 3, 2, 4, 0).reshape(-1, side * side * channels)
