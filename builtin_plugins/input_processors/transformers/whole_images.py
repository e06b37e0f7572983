"""Images that are whole prompts, for models that embed a text or an image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import transformers

from builtin_plugins.input_processors.contract import ITEM, InputProcessor, ProcessedItem
from builtin_plugins.input_processors.transformers.largest_sizes import bound_sizes
from builtin_plugins.input_processors.transformers.loading import load_image_processor
from builtin_plugins.input_processors.transformers.processor import check_kwargs, keyword_names
from builtin_plugins.input_processors.transformers.settings import check_settings
from core.api import EngineConfig, InvalidRequest
from core.api.models import ModelSource
from core.api.serving import RenderedText

PLACEHOLDER: Final = "<image>"


class WholeImageProcessor(InputProcessor):
    """The image processor of a checkpoint; an image has one placeholder token, and no text."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        self._processor = load_image_processor(source)
        stated = self._processor.to_dict()
        check_settings(stated)
        bound_sizes(self._processor)
        self._kwargs = keyword_names(self._processor)
        self.placeholders: Mapping[str, str] = {"image": PLACEHOLDER}
        settings = json.dumps(stated, sort_keys=True, default=repr)
        self.identity = f"{type(self._processor).__name__} {transformers.__version__} {settings}"

    def process(self, modality: str, content: Any, kwargs: Mapping[str, Any]) -> ProcessedItem:
        """Return one image processed."""
        check_kwargs(kwargs, self._kwargs)
        try:
            found = self._processor(images=[content], return_tensors="pt", **kwargs)
        except (TypeError, ValueError) as error:
            size = f"{content.width} x {content.height} pixels"
            raise InvalidRequest(
                ITEM, f"got {size}, which cannot be processed: {error}."
            ) from error
        tensors = {
            name: value.contiguous()
            for name, value in found.items()
            if isinstance(value, torch.Tensor)
        }
        return ProcessedItem(modality, PLACEHOLDER, 1, tensors)

    def expand(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt: a placeholder is replaced by itself."""
        del items
        return prompt

    def expand_ids(self, token_ids: Sequence[int], items: Sequence[ProcessedItem]) -> list[int]:
        """Return the token ids: a placeholder is replaced by itself."""
        del items
        return list(token_ids)
