"""Attention over paged keys and values, and the batch a forward pass gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.model_spec.kv import KVSpec
    from core.step import NewRow


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What is fixed about one attention layer."""

    heads: int
    """Query heads of this rank."""
    kv_heads: int
    """Heads of keys and values; each is read by `heads // kv_heads` query heads that follow each
    other.
    """
    head_size: int
    scale: float
    """Factor on the product of query and key."""
    window: int | None = None
    """Tokens visible, the current one included."""
    chunk: int | None = None
    """A token sees those of its own chunk only: positions with the same `position // chunk`, up to
    its own.
    """
    softcap: float | None = None
    """Scores become `softcap * tanh(score / softcap)`, after the scale and before the mask."""
    value_size: int | None = None
    """Values are the keys' first so many elements, and only the keys are cached; None: values are
    of their own.
    """
    alibi: torch.Tensor | None = field(default=None, compare=False)
    """[heads] float32: how much a score falls with each token of distance, after scale and cap."""
    sinks: torch.Tensor | None = field(default=None, compare=False)
    """[heads]: scores that take part in the softmax and give no value."""
    distance_bias: torch.Tensor | None = field(default=None, compare=False)
    """[heads, 2 * reach + 1] float32: added to scores after scale and cap, for keys from `reach`
    tokens behind the
    query's position to `reach` ahead of it; farther ones get the outermost."""
    kv_dtype: str | None = None
    """What the cache keeps where that is not the model's dtype."""
    key_scale: torch.Tensor | None = field(default=None, compare=False)
    """[kv_heads] float32, 1 where the checkpoint states none: a cached key times this is the key.
    None: the backend takes
    none, or each vector has a factor of its own (`KVSpec.scaled`)."""
    value_scale: torch.Tensor | None = field(default=None, compare=False)
    causal: bool = True
    """False in a layer that attends to what an encoder made: every token sees all of it."""


@dataclass(frozen=True, slots=True)
class Turning:
    """What becomes of queries and keys before attention: norms over each head, where there are
    weights, then rotary positions,
    as the ops `rms_norm` and `rotary` say."""

    query_norm: torch.Tensor | None
    """[head_size]"""
    key_norm: torch.Tensor | None
    """[head_size]; both, or neither."""
    eps: float
    offset: float
    cos_sin: torch.Tensor
    """[positions, rotary_size] float32."""
    interleaved: bool


@dataclass(slots=True)
class AttentionInputs:
    """One KV group in one step, as the runner prepares it.

    Lists are on the host: nothing is read back.
    """

    query_starts: list[int]
    """Cumulative token counts, length num_seqs + 1."""
    kv_lens: list[int]
    """Tokens in the cache per sequence once this step's are written; of a cross group, positions
    beside its tokens.

    At most so many where `slack` says that the host does not know better.
    """
    block_table: torch.Tensor
    """[num_seqs, max_blocks] int32. Entries outside a window are stale: never read them."""
    slots: torch.Tensor
    """[num_tokens] int64: block * block_size + offset to write each token's key and value to.

    Of a cross group, of each position that is computed in this step: none in most. With
    `slot_tokens`, those say whose key and value a slot gets.
    """
    block_size: int
    spec: KVSpec
    """Heads, sizes and dtype of what is cached: a `FullAttention`, or one of those that extend it.
    """
    starts: torch.Tensor | None = None
    """[num_seqs] int64: position of each sequence's first token in the step."""
    counts: torch.Tensor | None = None
    """[num_seqs] int64: tokens of each sequence."""
    lengths: torch.Tensor | None = None
    """[num_seqs] int64: `kv_lens` as they truly are.

    These three have the same place in memory in every step.
    """
    slack: list[int] | None = None
    """How much smaller each of `kv_lens` may truly be, since results of guesses are not read yet;
    None: they are exact.

    Tokens of such a sequence are few. What they see is to be found on the device, from `lengths`.
    (A backend without `device_lengths = True` is not given this: the worker waits for the results.)
    """
    slot_tokens: torch.Tensor | None = None
    """[num_slots] int64: the token of the step that each of `slots` is of, where several sequences
    go on from one token and
    each keeps a key of it; None: slots and tokens stand in one order. (Not given to a backend
    without `slot_tokens = True`.)
    """


class AttentionBackend(Protocol):
    """Attention over paged keys and values. Constructed with the engine's config, if it takes an
    argument; one per worker.

    Optional: `kv_dtypes`, names of dtypes beside the model's own in which it can cache; `kv_scales
    = True`, where it reads `params.key_scale` and `value_scale`, and can keep factors behind
    vectors (`spec.row_size`). A model that needs what is missing is refused by name. One that finds
    on the device what sequences with `AttentionInputs.slack` see has `device_lengths = True`; one
    that writes keys where `AttentionInputs.slot_tokens` says, `slot_tokens = True`.
    `attend_turning(params, turning, query, key, value, positions, cache, plan)`: `attend` for query
    and key that are not yet as `turning` says, at `positions` [num_tokens] int64; both may be
    changed in place. Layers of which it does not say all call `attend`.
    """

    graph_support: str
    """"none", "decode" or "full": which steps a captured graph may hold.

    A graph finds what it reads of a step at the same places each time. So a plan has, unless this
    is "none", a method `kept(max_len)`, which returns the plan in memory of its own with room for
    sequences so long, and that one `take(plan)`, which copies the numbers of another step of as
    many sequences there. With "full" it has a method `kept_for_any(max_len)` as well, whose plan
    takes those of any step of as many tokens, whatever its sequences are. A plan that was kept is
    computed several times before it takes a step; for states, the worker's own plans see to that.
    """

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of one layer's cache, blocks first.

        Its bytes are num_blocks * block_size * spec.token_bytes; groups of one pool share memory
        block by block. Each head of a token has `spec.vectors` vectors: its key and, unless that is
        all, its value.
        """

    def prepare(self, inputs: AttentionInputs) -> Any:
        """Plan one step of one group once; what it returns is given to `attend` in each of its
        layers.
        """

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

        Every key and value of the step is written before any is read: a sequence may read blocks
        that another sequence of the same step fills (they begin alike).

        query is [num_tokens, heads, head_size], key and value [num_slots, kv_heads, head_size]: of
        the same tokens and causal, unless `params.causal` is false. With `params.value_size`, value
        is that part of key. Where the inputs had `slot_tokens`, there is a key and a value for each
        token, and slots get theirs by it.
        """


@dataclass(slots=True)
class ForwardBatch:
    """The tokens of one step, on the device, and what layers need to know about them."""

    input_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    attention: Sequence[Any]
    """Per caching layer: what the attention backend prepared for its group, or the plan of its
    states.

    Layers that features have added come behind the model's own.
    """
    rows: list[int]
    """Row of each sequence in the step; of padding, the one behind the last."""
    starts: list[int]
    """At most so: `positions` are right where results of guesses are not read yet."""
    counts: list[int]
    prompt_lens: list[int]
    token_ids: torch.Tensor
    """[max_num_seqs + 1, max_model_len] int64: every row's tokens, sampled ones included, by
    position.
    """
    token_types: torch.Tensor | None = None
    """[num_tokens] int64: 0, or 1 in the second text of a pair; None: all are 0."""
    entering: Sequence[NewRow] = ()
    """Requests that enter in this step with positions beside their tokens, in the order of the
    slots of cross groups.
    """
    embeddings: torch.Tensor | None = None
    """[num_tokens, hidden], where a feature has set it: what the first layer reads instead of
    `input_ids`.
    """
    rope_positions: torch.Tensor | None = None
    """[k, num_tokens] int64, where a feature has set it: what models with several positions per
    token turn by.
    """
    adapted: bool = False
    """A feature has set adapters of layers for this step (`adapter`): it is no step that a recorded
    model can do again.
    """
    branched: bool = False
    """A feature has set attention with `slot_tokens`: it is none that a graph of steps without them
    can do again.
    """
    adapter_set: int = 0
    """Not 0: a feature has set adapters that look up by themselves whose tokens a step has, and
    call nothing that could not be
    recorded; steps of one number have the same ones."""
