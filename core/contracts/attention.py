"""Attention backends, and the batch of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.model_spec.attention_params import AttentionParams
    from core.model_spec.kv import KVSpec
    from core.model_spec.tower import ItemStates
    from core.step import NewRow


@dataclass(slots=True)
class AttentionInputs:
    """The inputs of one KV group in one step. Lists are on the host, without a device sync."""

    query_starts: list[int]
    """Cumulative token counts, length num_seqs + 1."""
    kv_lens: list[int]
    """Cached tokens per sequence after this step's writes; encoder positions
    in a cross group.

    Upper bounds where `slack` is set.
    """
    block_table: torch.Tensor
    """[num_seqs, max_blocks] int32. Entries outside a window are stale and must not be read."""
    slots: torch.Tensor
    """[num_tokens] int64: slot mapping, block * block_size + offset of each
    token.

    In a cross group, of each encoder position computed in this step. With
    `slot_tokens`, those tensors map slots to tokens.
    """
    block_size: int
    spec: KVSpec
    """Heads, sizes and dtype of the cache: a `FullAttention` or a subclass."""
    starts: torch.Tensor | None = None
    """[num_seqs] int64: position of each sequence's first token in
    the step.
    """
    counts: torch.Tensor | None = None
    """[num_seqs] int64: number of tokens of each sequence."""
    lengths: torch.Tensor | None = None
    """[num_seqs] int64: exact `kv_lens`.

    `starts`, `counts` and `lengths` keep their addresses.
    """
    slack: list[int] | None = None
    """Maximum excess of each of `kv_lens` while draft tokens are unverified;
    None: exact.

    Such sequences have few tokens; their exact lengths are on the device, in `lengths`.
    A backend without `device_lengths = True` never gets it: the worker waits for the
    results.
    """
    slot_tokens: torch.Tensor | None = None
    """[num_slots] int64: token index of each of `slots`, when sequences
    branch from one token.

    None: slots and tokens have one order. Requires `slot_tokens = True` of the backend.
    """


class AttentionBackend(Protocol):
    """Attention over a paged KV cache. Constructed once per worker, with the
    engine's config if it takes one.

    Optional members:
    - `kv_dtypes`: cache dtypes besides the model's.
    - `kv_scales = True`: it applies `params.key_scale` and `value_scale`, and can store
      a scale after each vector (`spec.row_size`). A model that needs a missing member
      is refused.
    - `device_lengths = True`: it reads exact lengths on the device
      (`AttentionInputs.slack`).
    - `slot_tokens = True`: it writes keys by `AttentionInputs.slot_tokens`.
    - `attend_with_rope(params, qk_norm_rope, query, key, value, positions, cache,
      plan)`: `attend` for query and key before `qk_norm_rope`, at `positions`
      [num_tokens] int64; it may change both in place. Layers without it call `attend`.
    - `read_kv(params, cache, slots, dtype)`: keys, values
      [n, vectors, kv_heads, head_size] of slots [n].
    - `copy_latents`: see backend `paged`.
      For sparse attention.
    - `prepare_index(inputs, top_k)`,
      `prepare_sparse(inputs, top_k)`: plans with
      the methods of `IndexPlan` and `SparsePlan`.
    - `look_ahead(plan, spans)`: a plan with tokens
      that also see later ones (`LookAheadSpan`).
    """

    graph_support: str
    """Steps that a CUDA graph may capture: "none", "decode" or "full".

    A graph reads its inputs from fixed addresses. Unless this is "none", a plan
    therefore has `to_static(max_len)`, which returns a plan in buffers of its own for
    sequences up to this length, and the static plan has `update(plan)`, which copies
    another step with as many sequences into them. With "full" a plan also has
    `to_static_for_any(max_len)`: its plan accepts any step with as many tokens. A
    static plan may run several times between updates.
    """

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of one layer's cache, blocks first.

        It has num_blocks * block_size * spec.token_bytes bytes; groups of one pool
        share memory block by block. A head has `spec.vectors` vectors per token: the
        key and, usually, the value.
        """

    def prepare(self, inputs: AttentionInputs) -> Any:
        """Return the plan of one group in one step, which all its layers pass to `attend`."""

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        plan: Any,
    ) -> torch.Tensor:
        """Write key and value to the cache; return attention [num_tokens,
        heads, value size].

        All keys and values of the step are written before any is read: a sequence may
        read blocks that another one fills in the same step (a shared prefix).

        query is [num_tokens, heads, head_size], key and value [num_slots, kv_heads,
        head_size], of the same tokens unless `params.causal` is false. With
        `params.value_size`, value is a view of key. With `slot_tokens`, key and value
        are per token.
        """


@dataclass(slots=True)
class ForwardBatch:
    """The tokens of one step on the device, and the metadata that layers
    need.
    """

    input_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    attention: Sequence[Any]
    """Plan of the attention backend or of recurrent states, per KV layer.

    Layers added by features follow the model's own.
    """
    rows: list[int]
    """Row of each sequence in the step; the padding row is the one after the
    last.
    """
    starts: list[int]
    """Upper bounds while draft tokens are unverified; `positions`
    is exact.
    """
    counts: list[int]
    prompt_lens: list[int]
    token_ids: torch.Tensor
    """[max_num_seqs + 1, max_model_len] int64: token history of every row, by
    position.
    """
    token_types: torch.Tensor | None = None
    """[num_tokens] int64: token type ids, 1 in the second text of a pair;
    None: all 0.
    """
    entering: Sequence[NewRow] = ()
    """New requests with encoder positions, in the order of the cross groups'
    slots.
    """
    embeddings: torch.Tensor | None = None
    """[num_tokens, hidden]: scaled input embeddings. Features set this and the
    next three.
    """
    rope_positions: torch.Tensor | None = None
    """[axes, num_tokens] int64: M-RoPE positions."""
    deepstack: Sequence[torch.Tensor] = ()
    """[num_tokens, hidden] each: added after layer 0, 1, ..."""
    item_states: ItemStates | None = None
    """Encoder states of items, for cross attention."""
    adapted: bool = False
    """True: a feature set adapters (`adapter`) for this step, so no captured
    model may run.
    """
    branched: bool = False
    """True: a feature set attention with `slot_tokens`, so no graph without
    them may run.
    """
    adapter_set: int = 0
    """Identifies a capturable set of adapters that find the tokens of a step
    by themselves.

    Steps with the same number have the same adapters; 0: none.
    """
