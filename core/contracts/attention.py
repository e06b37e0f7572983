"""Attention over paged keys and values, and the batch a forward pass gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.kv_spec import KVSpec
    from core.step import EncoderInput


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What is fixed about one attention layer."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    """Tokens visible, the current one included."""
    chunk: int | None = None
    softcap: float | None = None
    value_size: int | None = None
    """Values are the keys' first so many elements, and only the keys are cached; None: values are of their own."""
    alibi: torch.Tensor | None = field(default=None, compare=False)
    """[heads] float32: how much a score falls with each token of distance, after scale and cap."""
    sinks: torch.Tensor | None = field(default=None, compare=False)
    """[heads]: scores that take part in the softmax and give no value."""
    distance_bias: torch.Tensor | None = field(default=None, compare=False)
    """[heads, 2 * reach + 1] float32: added to scores after scale and cap, for keys from `reach` tokens behind the
    query's position to `reach` ahead of it; farther ones get the outermost."""
    causal: bool = True
    """False in a layer that attends to what an encoder made: every token sees all of it."""


@dataclass(slots=True)
class AttentionInputs:
    """One KV group in one step, as the runner prepares it. Lists are on the host: nothing is read back."""

    query_starts: list[int]
    """Cumulative token counts, length num_seqs + 1."""
    kv_lens: list[int]
    """Tokens in the cache per sequence once this step's are written; of a cross group, positions of its encoder."""
    block_table: torch.Tensor
    """[num_seqs, max_blocks] int32. Entries outside a window are stale: never read them."""
    slots: torch.Tensor
    """[num_tokens] int64: block * block_size + offset to write each token's key and value to.

    Of a cross group, of each position that is encoded in this step: none in most.
    """
    block_size: int
    spec: KVSpec


class AttentionBackend(Protocol):
    """Attention over paged keys and values. Constructed without arguments, one per worker."""

    graph_support: str
    """"none", "decode" or "full": which steps a captured graph may hold."""

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of one layer's cache, blocks first.

        Its bytes are num_blocks * block_size * spec.token_bytes; groups of one pool share memory block by block.
        Each head of a token has `spec.vectors` vectors: its key and, unless that is all, its value.
        """

    def prepare(self, inputs: AttentionInputs) -> Any:
        """Plan one step of one group once; what it returns is given to `attend` in each of its layers."""

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Any,
    ) -> torch.Tensor:
        """Write key and value to the cache, return attention [num_tokens, heads, size of a value].

        Every key and value of the step is written before any is read: a sequence may read blocks that another
        sequence of the same step fills (they begin alike).

        query is [num_tokens, heads, head_size], key and value [num_slots, kv_heads, head_size]: of the same tokens
        and causal, unless `params.causal` is false. With `params.value_size`, value is that part of key.
        """


@dataclass(slots=True)
class ForwardBatch:
    """The tokens of one step, on the device, and what layers need to know about them."""

    input_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    attention: Sequence[Any]
    """Per caching layer: what the attention backend prepared for its group, or the plan of its states."""
    rows: list[int]
    """Row of each sequence in the step."""
    starts: list[int]
    counts: list[int]
    prompt_lens: list[int]
    token_ids: torch.Tensor
    """[max_num_seqs, max_model_len] int64: every row's tokens, sampled ones included, by position."""
    token_types: torch.Tensor | None = None
    """[num_tokens] int64: 0, or 1 in the second text of a pair; None: all are 0."""
    encoder_inputs: Sequence[EncoderInput] = ()
    """Those to encode in this step, in the order of the slots of cross groups."""
