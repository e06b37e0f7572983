"""Messages between the halves of the feature, and to and from the input processor's process."""

from __future__ import annotations

from typing import Any

import msgspec

from core.model_spec.tower import MULTIMODAL

NAME = MULTIMODAL
"""Name of the feature."""
EMBEDDINGS_MODE = "embeddings"
"""`RawItem.mode` of a client's embeddings: `data` is a map of `ClientTensor` in MessagePack."""

# --- about a request's items


class ItemRun(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive placeholder tokens of one item."""

    start: int
    """Position of the first one in the prompt."""
    length: int
    row: int
    """Row of the item's embeddings for the first one."""


class RequestItem(msgspec.Struct, array_like=True, frozen=True):
    """One item of a prompt. Its tensors are in the store."""

    modality: str
    content_hash: bytes
    num_tokens: int
    """Number of its embeddings: those of placeholder tokens, or encoder states."""
    runs: list[ItemRun]
    was_known: bool = False
    """Whether an earlier request had the item processed."""


class RequestItems(msgspec.Struct, array_like=True, frozen=True):
    """All items of a request, sent from admission to the other halves."""

    folder: str
    """Folder of the tensor store."""
    holder: str
    """Name under which the store holds the items' tensors for this request."""
    items: list[RequestItem]
    look_ahead: list[tuple[int, int]] = []
    """Runs of tokens that see each other: position of the first one, and after the last one."""
    sees_all: bool = False
    """Whether the tokens of each run see those of all runs."""
    at_start: bool = False
    """Whether the first step of the request needs all items: they are encoder input or states."""

    @property
    def num_embeddings(self) -> int:
        """Number of embeddings of all items."""
        return sum(item.num_tokens for item in self.items)

    def units(self) -> list[tuple[int, int]]:
        """Return the runs of `look_ahead` that a step computes as a whole."""
        if self.look_ahead and self.sees_all:
            return [(self.look_ahead[0][0], self.look_ahead[-1][1])]
        return self.look_ahead

    def later(self, end: int) -> tuple[tuple[int, int], ...]:
        """Return the other runs that the tokens of the run up to `end` see ahead."""
        return tuple(run for run in self.look_ahead if self.sees_all and run[0] >= end)


class AheadItem(msgspec.Struct, array_like=True, frozen=True):
    """An item, or a part of its encoding, for chunks of later steps."""

    folder: str
    holder: str
    item: RequestItem
    part: int = 1
    """Number of the part, from 1."""
    num_parts: int = 1

    @property
    def is_last(self) -> bool:
        """Whether the item is encoded after this part."""
        return self.part >= self.num_parts


class StepItems(msgspec.Struct, array_like=True, frozen=True):
    """What the worker halves do in one step, sent from the scheduler half."""

    encode: list[bytes] = []
    """Content hashes of the items to encode."""
    drop: list[bytes] = []
    """Content hashes of items to remove from the encoder cache, before the step."""
    ahead: list[AheadItem] = []
    """Items that no token of the step needs; with their last part, they are in `encode`, too."""


# --- to and from the process


class RawItem(msgspec.Struct, frozen=True):
    """An item as the frontend got it: an encoded file, or pixels."""

    modality: str
    field: str
    """Where it is in the request, for errors."""
    data: bytes
    mode: str = ""
    """Pillow's mode of pixels, or `EMBEDDINGS_MODE`; empty: `data` is an encoded file."""
    size: tuple[int, int] = (0, 0)
    """Width and height of pixels."""
    uuid: str | None = None


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """A prompt with items to process."""

    number: int
    items: list[RawItem]
    kwargs: dict[str, Any]
    tenant: str
    """Clients that share their items' uuids."""
    holder: str
    text: str | None = None
    control_spans: list[tuple[int, int]] | None = None
    """Control spans of a rendered conversation; None: every special token is one."""
    token_ids: list[int] = []
    """The prompt without a text."""


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The process begins with a prompt: the one that fails if the process ends now."""

    number: int


class PreparedItem(msgspec.Struct, frozen=True):
    """One processed item; its tensors are in the store."""

    modality: str
    content_hash: bytes
    num_tokens: int
    was_known: bool = False
    """Whether an earlier request had the item processed."""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The answer: the expanded prompt and its items, or an error."""

    number: int
    items: list[PreparedItem] = []
    text: str | None = None
    control_spans: list[tuple[int, int]] = []
    token_ids: list[int] = []
    error_field: str = ""
    """Field of the request that is at fault; empty: none."""
    error: str = ""
    is_full: bool = False
    """Whether the error is a lack of memory that other requests use: a retry may succeed."""
    is_complete: bool = False
    """Whether the text has all special tokens: the tokenizer adds none."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first answer: the processor is loaded."""


class OpenStore(msgspec.Struct, frozen=True, tag=True):
    """The first message to the process: where it writes tensors."""

    folder: str
    cache_bytes: int
    """Size up to which it keeps tensors that no request holds."""
