"""Attention of one layer as data: multi-head and latent attention (MLA), norms, score scaling.

Knows no torch, no file, no model by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from core.errors import ModelError
from core.model_spec.rope import RopeSpec

if TYPE_CHECKING:
    from core.model_spec.rope import RopeSpec


def alibi_slopes(heads: int, bias_max: float = 8.0) -> tuple[float, ...]:
    """Return the ALiBi slope of each head; the last head of a power of two has 2 ** -bias_max."""
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-bias_max * i / whole) for i in range(1, whole + 1)]
    between = [2.0 ** (-bias_max * i / (2 * whole)) for i in range(1, 2 * whole, 2)]
    return tuple((slopes + between)[:heads])


@dataclass(frozen=True, slots=True)
class RelativeBiasSpec:
    """Relative position bias of T5: a learned score bias by head and distance bucket.

    Half of the buckets hold one distance each; the others are logarithmic up to `max_distance`.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False
    """Whether half of the buckets are for later keys; False in causal attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Multi-head attention of one layer, over the KV cache or over a whole prompt."""

    heads: int
    kv_heads: int
    head_size: int
    input_size: int = 0
    """Input width; 0: the hidden size."""
    rope: RopeSpec | None = None
    """Rotary embedding; None: this layer has none."""
    scale: float | None = None
    """Softmax scale; None: 1 / sqrt(head_size)."""
    causal: bool = True
    """Causal mask; False: bidirectional attention over a whole prompt in one step, without a cache.
    """
    window: int | None = None
    """Sliding window in tokens, including the current one; it covers both sides unless causal."""
    chunk: int | None = None
    """Chunk size in positions: a token attends only to its own chunk; None: no chunks."""
    softcap: float | None = None
    alibi: tuple[float, ...] = ()
    """ALiBi slope of each head; empty: no ALiBi."""
    relative: RelativeBiasSpec | None = None
    sinks: bool = False
    """Attention sinks: one learned softmax logit per head, without a value."""
    qk_norm: NormSpec | None = None
    """Norm of queries and keys; None: no norm."""
    qk_norm_over: Literal["head", "own", "all"] = "head"
    """Scope of `qk_norm`: shared by the heads, own weights per head, or one norm over all heads."""
    qk_norm_after_rope: bool = False
    """Whether `qk_norm` is applied after RoPE instead of before."""
    clip_qkv: float | None = None
    """Clamp of queries, keys and values to [-clip_qkv, clip_qkv]; None: no clamp."""
    temperature: Temperature | None = None
    v_norm: NormSpec | None = None
    key_is_value: bool = False
    """Whether values are the keys before norm and RoPE; there is no value projection."""
    kv_source_layer: int | None = None
    """Index of the earlier layer that owns the keys and values read here; None: this layer."""
    inner_norm: NormSpec | None = None
    """Norm of the heads' output, before the output projection."""
    gate: bool = False
    """Whether the heads' output is multiplied by the sigmoid of a gate projection."""
    gate_per_head: bool = False
    """Whether the gate projection has one row per head, not one per channel."""
    in_scale: float = 1.0
    """Factor on the attention input."""
    out_scale: float = 1.0
    query_rank: int = 0
    """Size of a query latent, from which `query_norm` and a second projection make the queries; 0:
    they are projected from the input.
    """
    query_norm: NormSpec | None = None
    """Norm of the query latent."""
    qkv_bias: bool = False
    key_bias: bool = True
    """Whether the key projection has a bias where `qkv_bias` is set."""
    out_bias: bool = False
    kv_dtype: str | None = None
    """KV cache dtype; None: that of the quantization method, else the model dtype."""
    indexer: BlockIndexerSpec | PooledIndexerSpec | None = None
    """Selects the blocks of keys that a query attends to; None: it attends to all."""

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_size"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"{name} of attention: got {getattr(self, name)}; expected at least 1."
                )
        if self.heads % self.kv_heads:
            raise ModelError(
                f"num_attention_heads {self.heads} is not a multiple of num_key_value_heads "
                f"{self.kv_heads}; "
                "each key-value head must serve an equal number of heads."
            )
        if self.rope is not None and self.rope.size > self.head_size:
            raise ModelError(
                f"rotary size {self.rope.size} is larger than the head size {self.head_size}; "
                "check head_dim and partial_rotary_factor."
            )
        if self.window is not None and self.window < 1:
            raise ModelError(
                f"sliding_window {self.window} hides the token itself; it must be at least 1, or "
                "null."
            )
        if not self.causal and (
            self.chunk
            or self.softcap
            or self.alibi
            or self.sinks
            or self.kv_source_layer is not None
        ):
            raise ModelError(
                "bidirectional attention supports no chunk, softcap, ALiBi, sinks or shared KV."
            )
        if self.alibi and len(self.alibi) != self.heads:
            raise ModelError(
                f"alibi: got {len(self.alibi)} slopes; expected {self.heads}, one per head."
            )
        if self.indexer is not None:
            self.indexer.check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndexerSpec:
    """Lightning indexer of block-sparse attention: selects blocks of keys for each KV head.

    It has a query head for each KV head, and one key head. A block's score is the highest product
    of the query with its keys.
    """

    source_layer: ClassVar[None] = None
    """Each layer selects for itself."""
    heads: int
    size: int
    """Size of queries and keys; their leading part has the RoPE of the layer."""
    block_size: int
    """Keys per block (index_block_size)."""
    top_blocks: int
    """Blocks selected per query and KV head (index_topk_blocks), local ones included."""
    local_blocks: int
    """Last blocks, always selected (index_local_blocks)."""
    norm: NormSpec
    """Norm of queries and keys, shared by the heads."""

    @property
    def top_k(self) -> int:
        """Number of tokens in the selected blocks; queries that see no more attend to all."""
        return self.block_size * self.top_blocks

    def check(self, attention: AttentionSpec) -> None:
        """Raise `ModelError` for sizes and for attention that it does not support."""
        for name, least in (("size", 1), ("block_size", 1), ("top_blocks", 1), ("local_blocks", 0)):
            if getattr(self, name) < least:
                raise ModelError(
                    f"{name} of the indexer: got {getattr(self, name)}; expected at least {least}."
                )
        if self.heads != attention.kv_heads:
            raise ModelError(
                f"index_n_heads: got {self.heads}; expected num_key_value_heads "
                f"{attention.kv_heads}. Restore the model's own config.json."
            )
        if self.local_blocks > self.top_blocks:
            raise ModelError(
                f"index_local_blocks: got {self.local_blocks}; expected up to index_topk_blocks "
                f"{self.top_blocks}. Restore the model's own config.json."
            )
        if attention.rope is None or attention.rope.size > self.size:
            raise ModelError(
                f"index_head_dim: got {self.size}; expected at least the rotary size of the layer. "
                "Restore the model's own config.json."
            )
        others = ("window", "chunk", "softcap", "alibi", "relative", "sinks", "kv_source_layer")
        if not attention.causal or any(getattr(attention, name) for name in others):
            raise ModelError(
                "an indexer of blocks supports no window, chunk, softcap, bias, sinks or shared KV."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledIndexerSpec:
    """Indexer that selects blocks by the mean of their keys, for all heads alike (Qwen4-Exp).

    The last block is selected while it is incomplete.
    """

    source_layer: ClassVar[None] = None
    """Each layer selects for itself."""
    heads: int
    size: int
    """Size of queries and keys; their leading part has the RoPE of the layer."""
    block_size: int
    """Keys per block (indexer_compress_ratio)."""
    top_blocks: int
    """Complete blocks selected per query."""
    norm: NormSpec
    """Norm of queries and of pooled keys."""

    @property
    def top_k(self) -> int:
        """Maximum number of selected tokens; queries that see no more attend to all."""
        return self.block_size * (self.top_blocks + 1) - 1

    def check(self, attention: AttentionSpec) -> None:
        """Raise `ModelError` for sizes that it does not support."""
        if min(self.heads, self.size, self.block_size, self.top_blocks) < 1:
            raise ModelError(
                "indexer_budget: expected at least one block of indexer_compress_ratio tokens. "
                "Restore the model's own config.json."
            )
        if attention.rope is None or attention.rope.size > self.size:
            raise ModelError(
                f"indexer_head_dim: got {self.size}; expected at least the rotary size of the "
                "layer. Restore the model's own config.json."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """Lightning indexer of DeepSeek sparse attention: selects the tokens that a query attends to.

    A token's score is the weighted sum, over index heads, of relu(query @ key). Queries come from
    the query latent; keys and weights from the layer's input. The key has one head.
    """

    top_k: int
    """Tokens selected per query (index_topk); queries that see no more attend to all."""
    heads: int
    size: int
    """Size of queries and keys; a part of them has the RoPE of the layer's shared key."""
    interleaved: bool
    """Whether the pairs of its RoPE are interleaved."""
    rope_at_end: bool = False
    """Whether the trailing part of queries and keys has RoPE instead of the leading part."""
    norm_eps: float = 1e-6
    """Epsilon of the norm of keys."""
    source_layer: int | None = None
    """Index of the earlier layer that selects for this one; None: it selects for itself."""
    reads_input: bool = False
    """Whether queries come from the layer's input, after a norm of its own, instead of the query
    latent.
    """
    log_scaling: bool = False
    """Whether queries are scaled by learned factors and the logarithm of their position."""

    def __post_init__(self) -> None:
        for name in ("top_k", "heads", "size"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"{name} of the indexer: got {getattr(self, name)}; expected at least 1."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """Multi-head latent attention (MLA) of one layer over a cache of latents.

    A head's key is a projection of the latent (the nope part), then a part with RoPE that all heads
    share. Its value is another projection of the latent.
    """

    causal: ClassVar[bool] = True
    heads: int
    key_size: int
    """Size of a head's key without RoPE (qk_nope_head_dim)."""
    shared_size: int
    """Size of the shared key with RoPE (qk_rope_head_dim)."""
    value_size: int
    rank: int
    """Size of the latent (kv_lora_rank)."""
    rope: RopeSpec | None
    """Rotary embedding of the shared key; None: none."""
    norm: NormSpec
    """Norm of latents and of the shared key, each with its own weights."""
    scale: float
    """Softmax scale."""
    query_rank: int | None = None
    """Size of the query latent (q_lora_rank); None: queries are projected from the input."""
    query_scale: float = 1.0
    """Factor on the normalised query latent."""
    latent_scale: float = 1.0
    """Factor on the normalised KV latent."""
    shared_norm: bool = False
    """Whether the shared key is normalised, before RoPE."""
    window: int | None = None
    """Sliding window in tokens, including the current one."""
    temperature: Temperature | None = None
    bias: bool = False
    """Whether the latent and output projections have a bias."""
    gate: bool = False
    """Whether each head's output is multiplied by the sigmoid of a projection of the input."""
    gate_per_channel: bool = False
    """Whether the gate has a number for each channel of a head's output, not one for the head."""
    sinks: bool = False
    """Attention sinks: one learned softmax logit per head, without a value."""
    query_gate: bool = False
    """Whether the query projection also reads the query latent before its norm, and has a gate
    after each head's query. The gate's sigmoid multiplies the head's output.
    """
    indexer: IndexerSpec | None = None
    """Selection of the tokens to attend to; None: all earlier ones."""
    log_scaling: bool = False
    """Whether queries are scaled by learned factors and the logarithm of their position."""
    kv_source_layer: int | None = None
    """Index of the earlier layer that owns the latents; None: this layer does."""

    def __post_init__(self) -> None:
        sizes = ["heads", "key_size", "value_size", "rank"]
        if self.rope is not None:
            sizes.append("shared_size")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ModelError(
                    f"{name} of latent attention: got {getattr(self, name)}; expected at least 1."
                )
        if self.rope is not None and self.rope.size != self.shared_size:
            raise ModelError(
                f"rotary size {self.rope.size} is not qk_rope_head_dim {self.shared_size}; check "
                "partial_rotary_factor."
            )
        reads_latent = self.indexer is not None and not self.indexer.reads_input
        if (reads_latent or self.query_gate) and self.query_rank is None:
            raise ModelError(
                "q_lora_rank: got null; expected the size of the query latent, which the indexer "
                "or the gate reads. Restore the model's own config.json."
            )
        if self.indexer is not None and self.window is not None:
            raise ModelError("an indexer selects among all earlier tokens; it has no window.")
        if self.indexer is not None and self.indexer.size < self.shared_size:
            raise ModelError(
                f"index_head_dim: got {self.indexer.size}; expected at least qk_rope_head_dim "
                f"{self.shared_size}. Restore the model's own config.json."
            )

    @property
    def sparse(self) -> bool:
        """Whether a query attends to a selection of tokens."""
        return self.indexer is not None

    @property
    def head_size(self) -> int:
        """Elements cached per token: the latent and the shared key."""
        return self.rank + self.shared_size


@dataclass(frozen=True, slots=True)
class NormSpec:
    """RMSNorm, or LayerNorm with an optional bias; "affine": only (x + bias) * weight."""

    kind: Literal["rms", "layer", "affine"] = "rms"
    eps: float = 1e-6
    offset: float = 0.0
    """Offset added to the stored weight."""
    bias: bool = False
    weight: bool = True
    """Whether the checkpoint stores a weight; False: the weight is 1."""
    gate_rank: int = 0
    """Rank of a gate that is computed from the result; its sigmoid multiplies the result. 0: none.
    """


@dataclass(frozen=True, slots=True)
class Temperature:
    """Query scaling by position p: 1 + scale * log(1 + floor((p + shift) / length))."""

    scale: float
    length: int
    shift: int = 0
