"""Towers: encoders of images or audio, which give placeholder tokens their embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    import torch

MULTIMODAL: Final = "multimodal"
"""Feature name of a tower's facts, and of the messages about a request's items."""
PROMPT_EMBEDS: Final = "prompt_embeds"
"""Feature name of the width of a decoder's embeddings, and of prompts given as embeddings."""


LookAhead = Literal["", "items", "windowed_items", "all_items", "prompt"]
"""Tokens that see each other: none, those of an item, those of an item in layers with a sliding
window only, those of all items of a prompt (but not the text between them), or all of a prompt with
items. A step computes such tokens together.
"""


class TowerFacts(msgspec.Struct, frozen=True, array_like=True):
    """What admission knows of a tower; a message, so plain data."""

    placeholders: dict[str, int]
    """Placeholder token in prompts, by modality."""
    look_ahead: LookAhead = ""
    """Tokens that see each other."""
    embedding_width: int = 0
    """Numbers in an embedding of a client, with those of deepstack; 0: it may send none."""
    marks: dict[str, list[int]] = {}
    """Other tokens that get embeddings of the tower, such as those that mark a grid of tiles."""
    in_encoder: bool = False
    """Whether the items are part of the encoder's input, and the prompt is the encoder's."""
    cross_positions: int = 0
    """Encoder states of an item that cross attention reads; 0: its embeddings are input of layers.

    Its placeholder is one token then. That token and those up to the next item, or to the next one
    after text, read the states of the item; tokens before the first item read all states.
    """
    max_cross_positions: int = 0
    """Maximum encoder positions of a request."""
    whole_prompt: bool = False
    """Whether an item is a whole prompt, without any text."""

    def tokens(self, modality: str) -> frozenset[int]:
        """Return the tokens that get embeddings of an item."""
        return frozenset((self.placeholders[modality], *self.marks.get(modality, ())))


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """The output of a tower for one item."""

    embeddings: torch.Tensor
    """[placeholder tokens, hidden]: input embeddings, already scaled."""
    deepstack: tuple[torch.Tensor, ...] = ()
    """[placeholder tokens, hidden] each: added after the first, second, ... layer."""
    num_padding: int = 0
    """Last embeddings that are padding: only tokens before the first item read them, by cross
    attention.
    """

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return self.embeddings.nbytes + sum(level.nbytes for level in self.deepstack)


@dataclass(frozen=True, slots=True)
class ItemStates:
    """What a step computes from items by cross attention, or in the encoder."""

    entering: torch.Tensor | None
    """[positions, hidden]: encoder states of new requests, or embeddings of the placeholder tokens
    in their encoder inputs; None: no request with items is new.
    """
    reads: torch.Tensor | None = None
    """[num_tokens, 1] bool: tokens that read states in layers with gated cross attention."""
    feeds: torch.Tensor | None = None
    """[num_tokens, 1] bool: those with an MLP in such layers, from the first item on."""


@dataclass(frozen=True, slots=True)
class RopePositions:
    """Multi-dimensional positions of a prompt (M-RoPE)."""

    positions: torch.Tensor
    """[axes, prompt tokens] int64."""
    shift: int
    """Position of each generated token minus its index."""


class Tower(Protocol):
    """A built tower (a `torch.nn.Module`), in `Decoder.tower`.

    Every rank has a whole one, on the first pipeline stage.
    """

    facts: TowerFacts
    """What admission and the scheduler need to know of it."""

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of its checkpoint tensors."""

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load all tensors of a checkpoint that the decoder does not expect.

        Raises `ModelError` naming missing, unexpected and misshapen tensors.
        """

    def encode(self, modality: str, inputs: Mapping[str, torch.Tensor]) -> EncodedItem:
        """Return one item encoded; `inputs` are its input processor's tensors, on the device."""

    def rope_positions(
        self, token_ids: Sequence[int], items: Iterable[tuple[str, Mapping[str, torch.Tensor]]]
    ) -> RopePositions | None:
        """Return a prompt's positions for its items (modality, tensors); None: one per token.

        The tensors are read when they are iterated over.
        """


class TowerSpec(Protocol):
    """A tower as data, in `DecoderSpec.tower`."""

    @property
    def facts(self) -> TowerFacts:
        """The facts of the tower it builds."""

    def build(self, context: Any) -> Tower:
        """Return the tower for a `BuildContext`, without weights."""
