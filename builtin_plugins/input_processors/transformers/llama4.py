"""The image processor of Llama 4 with Pillow; transformers has one with torchvision only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, SizeDict
from transformers.processing_utils import ImagesKwargs


class Llama4ImagesKwargs(ImagesKwargs, total=False):
    """Settings of a call besides those of all image processors."""

    max_patches: int
    resize_to_max_canvas: bool


class Llama4ImageProcessorPil(PilBackend):
    """An image is cut into tiles of `size`, followed by the whole of it in one more tile.

    It is fitted into the top left corner of a canvas of up to `max_patches` tiles.
    """

    resample = PILImageResampling.BILINEAR
    image_mean = [0.5, 0.5, 0.5]
    image_std = [0.5, 0.5, 0.5]
    size = {"height": 336, "width": 336}
    do_resize = True
    do_rescale = True
    do_normalize = True
    do_convert_rgb = True
    max_patches = 16
    resize_to_max_canvas = False
    valid_kwargs = Llama4ImagesKwargs
    model_input_names = ["pixel_values"]

    def _preprocess(  # type: ignore[override]
        self,
        images: Sequence[np.ndarray],
        *,
        size: SizeDict,
        resample: Any,
        max_patches: int,
        resize_to_max_canvas: bool,
        return_tensors: Any,
        **options: Any,
    ) -> Any:
        """Return the tiles [tiles, channels, side, side] of all images, and their grids."""
        side = size.height
        assert side is not None
        tiles = []
        grids = []
        for image in images:
            height, width = image.shape[-2:]
            rows, columns = _canvas(height, width, side, max_patches, largest=resize_to_max_canvas)
            limits = rows * side, columns * side
            if not resize_to_max_canvas:  # enlarged up to one tile only
                limits = min(max(height, side), limits[0]), min(max(width, side), limits[1])
            fitted = self.resize(image, _fitted(height, width, *limits), resample)
            canvas = np.zeros((image.shape[0], rows * side, columns * side), fitted.dtype)
            canvas[:, : fitted.shape[1], : fitted.shape[2]] = fitted
            cut = canvas.reshape(-1, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
            tiles.append(self._normalized(cut.reshape(-1, *canvas.shape[:1], side, side), options))
            if rows * columns > 1:
                whole = self.resize(image, size, resample)
                tiles.append(self._normalized(whole[None], options))
            grids.append([rows, columns])
        data = {"pixel_values": torch.cat(tiles), "aspect_ratios": torch.tensor(grids)}
        return BatchFeature(data=data, tensor_type=return_tensors)

    def _normalized(self, tiles: np.ndarray, options: dict[str, Any]) -> torch.Tensor:
        """Return tiles rescaled and normalized in bfloat16, as the model was trained."""
        values = torch.from_numpy(np.ascontiguousarray(tiles))
        if options["do_rescale"]:
            dtype = torch.bfloat16 if options["do_normalize"] else torch.float32
            values = values.to(dtype) * options["rescale_factor"]
        if options["do_normalize"]:
            values = values if values.is_floating_point() else values.float()
            mean, std = (
                torch.tensor(options[name], dtype=values.dtype)[:, None, None]
                for name in ("image_mean", "image_std")
            )
            values = (values - mean) / std
        return values


def _canvas(height: int, width: int, side: int, limit: int, *, largest: bool) -> tuple[int, int]:
    """Return rows and columns of the canvas that an image is fitted into.

    Of canvases that enlarge the image, the one that enlarges it least, or with `largest` as far as
    possible; without any, the one that reduces it least. Of equal ones, the smallest.
    """
    grids = [
        (rows, count // rows)
        for count in range(limit, 0, -1)
        for rows in range(1, count + 1)
        if count % rows == 0
    ]
    scales = {grid: min(grid[0] * side / height, grid[1] * side / width) for grid in grids}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    chosen = max(scales.values())
    if enlarging and not largest:
        chosen = min(enlarging)
    return min((grid for grid in grids if scales[grid] == chosen), key=math.prod)


def _fitted(height: int, width: int, max_height: int, max_width: int) -> SizeDict:
    """Return the largest size within limits that has the proportions of an image."""
    vertical = max_height / height
    horizontal = max_width / width
    if horizontal < vertical:
        rows = min(math.floor(height * horizontal), max_height)
        return SizeDict(height=max(rows, 1), width=max_width)
    columns = min(math.floor(width * vertical), max_width)
    return SizeDict(height=max_height, width=max(columns, 1))
