"""DeepSeek V4's attention over compressed keys, and its residual streams, as data. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from core.errors import ModelError

if TYPE_CHECKING:
    from core.model_spec.attention import NormSpec
    from core.model_spec.rope import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSpec:
    """Small heads that select the compressed keys a query attends to, by keys of their own."""

    top_k: int
    """Compressed keys selected per query (index_topk)."""
    heads: int
    size: int
    """Size of a head's query and of the compressed index key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttentionSpec:
    """Attention over a window of keys and over compressed earlier ones, with attention sinks.

    All heads share one key per token, which is also its value. A compressed key is a sum over
    `rate` tokens, weighted for each channel by a softmax of learned scores.
    """

    causal: ClassVar[bool] = True
    sinks: ClassVar[bool] = False
    """The layer adds its sinks itself, without an attention backend."""
    heads: int
    head_size: int
    window: int
    """Sliding window in tokens, including the current one."""
    query_rank: int
    """Size of the query latent (q_lora_rank)."""
    groups: int
    """Groups of heads; the outputs of each are projected to `out_rank` by weights of their own."""
    out_rank: int
    """Width of a group's output (o_lora_rank)."""
    rope: RopeSpec
    """Rotary embedding of the end of each head; the output is rotated back."""
    norm: NormSpec
    rate: int = 0
    """Tokens per compressed key; 0: the window only."""
    selector: SelectorSpec | None = None
    """Selection of compressed keys, which then overlap: each also sums the `rate` tokens before.
    None: a query attends to all of them.
    """

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise ModelError(
                f"o_groups: got {self.groups}; expected a divisor of {self.heads} attention heads. "
                "Restore the model's own config.json."
            )
        if self.rate == 1:
            raise ModelError(
                "compress_rates: got 1; expected at least 2 tokens per compressed key. Restore the "
                "model's own config.json."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolvedAttentionSpec:
    """Attention with two short convolutions of queries and keys (ZAYA).

    The first convolution is per channel, the second per head. Half of each value comes from the
    token before. Queries and keys are scaled to a fixed length; keys have a learned factor per
    head.
    """

    causal: ClassVar[bool] = True
    sinks: ClassVar[bool] = False
    """No head has a sink."""
    heads: int
    kv_heads: int
    head_size: int
    rope: RopeSpec
    """Rotary embedding, after the convolutions."""
    kernels: tuple[int, int]
    """Sizes of both convolutions, in tokens."""
    window: int | None = None
    """Sliding window in tokens, including the current one; None: none."""
    bias: bool = False
    """Whether the projections have biases; the convolutions always do."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.kv_heads * self.head_size % 2:
            raise ModelError(
                f"num_key_value_heads: got {self.kv_heads}; expected a divisor of {self.heads} "
                "attention heads, with values that can be halved. Restore the model's own "
                "config.json."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterMlpSpec:
    """A router that is an MLP over a projection of its input (ZAYA)."""

    size: int
    """Width of the projection and of both hidden layers."""
    norm: NormSpec
    adds_previous: bool
    """Whether the projection of the layer before is added, with a learned factor per channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnectionSpec:
    """Hyper-connections: several residual streams, weighted by what they hold.

    A sublayer reads a weighted sum of the streams. Its output is added to each with a weight, after
    the streams were mixed by a doubly stochastic matrix.
    """

    streams: int
    """Number of residual streams (hc_mult)."""
    iterations: int
    """Sinkhorn iterations of the mixing matrix; 0: streams are not mixed."""
    norm_eps: float
    """Epsilon of the norm over all streams."""
    eps: float
    """Addend of the weights."""
    magnitude: float = 2.0
    """Largest weight of an output."""
    output_eps: float = 0.0
    """Addend of the weights of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedStreamsSpec:
    """Several residual streams, of which a sublayer reads the gated mean (Qwen4-Exp)."""

    streams: int
    """Number of streams."""
    rank: int
    """Rank of the gate of what is read."""
    eps: float
    """Epsilon of the norm of each stream."""
