"""A processor of transformers as input processor."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
import transformers
from PIL import Image

from builtin_plugins.input_processors.contract import ITEM, InputProcessor, ProcessedItem
from builtin_plugins.input_processors.expansion import begun, expand_ids, expand_text
from builtin_plugins.input_processors.transformers.embedded import SIZE, embedded_item
from builtin_plugins.input_processors.transformers.largest_sizes import bound_sizes
from builtin_plugins.input_processors.transformers.loading import load_processor
from builtin_plugins.input_processors.transformers.settings import PATCHES, check_settings
from core.api import EngineConfig, InvalidRequest, ModelError
from core.api.models import ModelSource
from core.api.serving import RenderedText

PATCH_AND_MARKS: Final = (
    *("image_patch_id", "image_start_token_id", "low_res_image_start_token_id"),
    "image_end_token_id",
)
"""Fields of a config with the tokens of a patch, and those that enclose the patches of a crop."""


class TransformersProcessor(InputProcessor):
    """Processes images with the image processor of a checkpoint."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        self._processor = load_processor(source)
        image_processor = self._processor.image_processor
        stated = image_processor.to_dict()
        check_settings(stated)
        bound_sizes(image_processor)
        check_settings({name: getattr(self._processor, name, None) for name in PATCHES})
        tokenizer = self._processor.tokenizer
        own = self._processor
        # Some prompts have another text for an image than its placeholder token.
        placeholder = getattr(own, "image_placeholder_token", None) or own.image_token
        if not isinstance(placeholder, str) or not placeholder:
            raise ModelError(
                f"processor_config.json: image_token: got {placeholder!r:.80}; expected a text. "
                "Restore the original file."
            )
        self.placeholders: Mapping[str, str] = {"image": placeholder}
        self._image_token_ids = _placeholder_ids(source.hf_config, self._processor)
        self._tokenizer = tokenizer
        self._example: ProcessedItem | None = None
        """A processed blank image."""
        texts = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        fixed: frozenset[str] = getattr(self._processor, "fixed_kwargs", frozenset())
        self._kwargs = frozenset(keyword_names(image_processor)) - fixed
        settings = json.dumps(stated, sort_keys=True, default=repr)
        name = f"{type(self._processor).__name__}.{type(image_processor).__name__}"
        self.identity = f"{name} {transformers.__version__} {settings}"

    def process(self, modality: str, content: Any, kwargs: Mapping[str, Any]) -> ProcessedItem:
        """Return one image processed."""
        check_kwargs(kwargs, self._kwargs)
        merged = self._processor._merge_kwargs(
            tokenizer_init_kwargs=self._tokenizer.init_kwargs, **{**kwargs, "return_tensors": "pt"}
        )
        try:
            process = self._processor._process_images
            known = inspect.signature(process).parameters
            own = {name: value for name, value in merged.items() if name in known}
            images, texts = process([content], **own, **merged["images_kwargs"])
        except (TypeError, ValueError) as error:
            size = f"{content.width} x {content.height} pixels"
            raise InvalidRequest(
                ITEM, f"got {size}, which cannot be processed: {error}."
            ) from error
        text = texts[0]
        ids = self._ids_of(text)
        placeholders = [token for token in ids if token in self._image_token_ids]
        tensors = {
            name: value.contiguous()
            for name, value in images.items()
            if isinstance(value, torch.Tensor)
        }
        if len(self._image_token_ids) > 1:
            tensors["placeholder_ids"] = torch.tensor(placeholders)
        return ProcessedItem(modality, text, len(placeholders), tensors)

    def embedded(self, modality: str, tensors: Mapping[str, torch.Tensor]) -> ProcessedItem:
        """Return one item of a client's embeddings. Raises `InvalidRequest`."""
        if self._example is None:
            self._example = self.process(modality, Image.new("RGB", SIZE), {})
        return embedded_item(self._example, tensors, self._tokenizer, self._image_token_ids)

    def expand(
        self, prompt: RenderedText, items: Sequence[ProcessedItem]
    ) -> RenderedText | list[int]:
        """Return the prompt with each item's text for its placeholder, or its token ids."""
        return self.expanded_text(prompt, items)

    def expanded_text(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt with each item's text for its placeholder."""
        expanded = expand_text(prompt, self._numbered(items), self.placeholders, self._special)
        return begun(expanded, getattr(self._processor, "start_text", ""))

    def expand_ids(self, token_ids: Sequence[int], items: Sequence[ProcessedItem]) -> list[int]:
        """Return token ids with each item's tokens for its placeholder."""
        pairs = [(item, self._ids_of(item.text)) for item in self._numbered(items)]
        ids = {
            modality: self._tokenizer.convert_tokens_to_ids(text)
            for modality, text in self.placeholders.items()
        }
        return expand_ids(token_ids, pairs, ids)

    def text_after_image(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> str:
        """Return the text of a prompt of one image; the placeholder may be left out.

        Raises `InvalidRequest` unless there is one image, before the text.
        """
        placeholder = self.placeholders["image"]
        text = str(prompt).removeprefix(placeholder)
        if len(items) != 1 or placeholder in text:
            raise InvalidRequest(
                "prompt",
                f"got {len(items)} images, or {placeholder!r} within the text; expected one image, "
                "before the text. Correct the prompt.",
            )
        return text

    def _ids_of(self, text: str) -> list[int]:
        """Return the tokens of an item's text."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return found

    def _numbered(self, items: Sequence[ProcessedItem]) -> Sequence[ProcessedItem]:
        """Return items with their places in the prompt in their texts, if the model reads them."""
        if not hasattr(self._processor, "numbered"):
            return items
        texts = self._processor.numbered([item.text for item in items])
        return [replace(item, text=text) for item, text in zip(items, texts, strict=True)]


def _placeholder_ids(hf_config: Any, processor: Any) -> set[int]:
    """Return the tokens that stand for embeddings.

    A processor's own list has tokens of the text, too, such as those that end a line of patches.
    """
    for name in ("image_token_id", "image_token_index"):
        token = getattr(hf_config, name, None)
        if token is not None:
            return {token, *getattr(hf_config, "visual_indicator_token_ids", ())}
    if hasattr(hf_config, "image_patch_id"):  # Molmo 2
        return {getattr(hf_config, name) for name in PATCH_AND_MARKS}
    known = getattr(processor, "image_token_ids", None) or [processor.image_token_id]
    return {token for token in known if token is not None}


def check_kwargs(kwargs: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `InvalidRequest` for a keyword that an image processor has not."""
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        raise InvalidRequest(
            "mm_processor_kwargs",
            f"got {unknown[0]!r}; expected one of {', '.join(sorted(known))}. Correct it.",
        )


def keyword_names(image_processor: Any) -> set[str]:
    """Return the settings of an image processor that a call may override."""
    stated = getattr(image_processor, "valid_kwargs", None)
    if stated is not None:
        return set(stated.__annotations__)
    return set(inspect.signature(image_processor.preprocess).parameters) - {"images"}
