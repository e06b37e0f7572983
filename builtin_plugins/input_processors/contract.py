"""What an input processor is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from core.api import InvalidRequest

if TYPE_CHECKING:
    import torch

    from core.api.serving import RenderedText


ITEM: Final = "item"
"""Field of an error about the item itself; the request's own name replaces it."""
EMBEDDINGS: Final = "embeddings"
"""Tensor of an item with embeddings of a client: [tokens, hidden], or with deepstack
[tokens, (1 + levels) * hidden].
"""


@dataclass(frozen=True, slots=True)
class ProcessedItem:
    """One item of a prompt, ready for the tower."""

    modality: str
    """Kind of the item, such as `image`."""
    text: str
    """Text that replaces the item's placeholder."""
    num_tokens: int
    """Number of placeholder tokens in that text: the rows that the tower returns."""
    tensors: Mapping[str, torch.Tensor]
    """Inputs of `Tower.encode`; empty if the item was found in the store."""


class InputProcessor(Protocol):
    """Turns the items of prompts into tensors. Constructed with (source, config).

    Runs in a process of its own, one prompt at a time. Processors subclass it for the defaults of
    `completes_prompts` and `embedded`.
    """

    completes_prompts: bool = False
    """Whether expanded prompts have all special tokens, so that the tokenizer adds none."""
    identity: str
    """Everything besides an item that its tensors depend on: classes, versions and settings."""
    placeholders: Mapping[str, str]
    """Text that marks an item in a prompt, by modality."""

    def process(self, modality: str, content: Any, kwargs: Mapping[str, Any]) -> ProcessedItem:
        """Return one item processed; `kwargs` are the request's `mm_processor_kwargs`.

        `content` is an image (`PIL.Image.Image`, RGB). Raises `InvalidRequest` for the field `item`
        if it cannot process it, or for `mm_processor_kwargs`.
        """

    def embedded(self, modality: str, tensors: Mapping[str, torch.Tensor]) -> ProcessedItem:
        """Return one item of tensors with a client's `EMBEDDINGS`; by default they are refused.

        Raises `InvalidRequest` for the field `item`.
        """
        raise InvalidRequest(
            ITEM,
            "got embeddings; expected an image, since this model's input processor places no "
            "embeddings. Send the image.",
        )

    def expand(
        self, prompt: RenderedText, items: Sequence[ProcessedItem]
    ) -> RenderedText | list[int]:
        """Return the prompt with each item's text for its placeholder, or its token ids.

        A text is tokenized as any prompt is; token ids are for models that tokenize an item and
        the text around it apart. Placeholders are control spans of the prompt, and so are special
        tokens of an item's text. Raises `InvalidRequest` for the field `prompt` if their numbers
        differ.
        """

    def expand_ids(self, token_ids: Sequence[int], items: Sequence[ProcessedItem]) -> list[int]:
        """Return token ids with each item's tokens for its placeholder."""
