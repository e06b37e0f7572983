"""Items of embeddings that a client has computed, placed like those of the model's own images."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from builtin_plugins.input_processors.contract import EMBEDDINGS, ITEM, ProcessedItem
from core.api import InvalidRequest

SIZE: Final = (64, 64)
"""Size of the blank image that shows the form of an item."""


def embedded_item(
    example: ProcessedItem,
    tensors: Mapping[str, torch.Tensor],
    tokenizer: Any,
    placeholder_ids: Collection[int],
) -> ProcessedItem:
    """Return an item of given embeddings; `example` is a processed image of the model.

    Raises `InvalidRequest` for the field `item`.
    """
    embeddings = tensors[EMBEDDINGS]
    count = len(embeddings)
    text = _text(example, count, tokenizer, placeholder_ids)
    grids = [name for name in example.tensors if name.endswith("_grid_thw")]
    extra = sorted(tensors.keys() - {EMBEDDINGS, *grids})
    missing = sorted(set(grids) - tensors.keys())
    if extra or missing:
        raise InvalidRequest(
            ITEM,
            f"got embeddings with {', '.join(extra) or 'no grid'}; expected "
            f"{', '.join(grids) or 'none'} for this model. Correct it.",
        )
    for name in grids:
        own = example.tensors[name]
        patches_per_token = math.prod(own[0].tolist()) // example.num_tokens
        grid = tensors[name].reshape(-1, 3)
        sides = grid.flatten().tolist()
        if len(grid) != 1 or min(sides) < 1 or math.prod(sides) != count * patches_per_token:
            raise InvalidRequest(
                ITEM,
                f"got {name} {sides} for {count} embeddings; expected a product of "
                f"{count * patches_per_token}. Correct it.",
            )
    return ProcessedItem(example.modality, text, count, dict(tensors))


def _text(
    example: ProcessedItem, count: int, tokenizer: Any, placeholder_ids: Collection[int]
) -> str:
    """Return the text of an item with `count` placeholder tokens."""
    ids = tokenizer.encode(example.text, add_special_tokens=False)
    kinds = {token for token in ids if token in placeholder_ids}
    if len(kinds) == 1:
        token = tokenizer.convert_ids_to_tokens(kinds.pop())
        run = token * example.num_tokens
        if example.text.count(run) == 1:
            return example.text.replace(run, token * count)
    raise InvalidRequest(
        ITEM,
        "got embeddings; expected an image, since this model's placeholder tokens are in rows and "
        "tiles. Send the image.",
    )
