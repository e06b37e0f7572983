"""Attention with a bias that each query gives to distances, as data (Inkling). Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from core.errors import ModelError

if TYPE_CHECKING:
    from core.model_spec.attention import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeAttentionSpec:
    """Attention with score biases: products of the query token and learned rows by distance.

    Keys, values and the output of the layer each pass a short causal convolution that is added to
    its input; so does the output of the MLP.
    """

    causal: ClassVar[bool] = True
    sinks: ClassVar[bool] = False
    """The layer adds its sinks itself, without an attention backend."""
    rope: ClassVar[None] = None
    """Positions are biases of scores."""
    heads: int
    kv_heads: int
    head_size: int
    bias_rank: int
    """Size of what a token gives a head for its biases (d_rel)."""
    extent: int
    """Distances with a bias, in tokens; later ones have none (rel_extent)."""
    kernel: int
    """Size of the convolutions, in tokens."""
    scale: float
    """Softmax scale."""
    norm: NormSpec
    """Norm of each head's query and key; without a weight: of its value."""
    window: int | None = None
    """Sliding window in tokens, including the current one; None: none."""
    temperature: tuple[float, int] | None = None
    """Factor `1 + scale * log(tokens / floor)` of the scores beyond `floor` tokens, as (scale,
    floor); None: none.
    """
    clips: tuple[float, float] | None = None
    """Longest queries and keys, and longest biases before their product. They and norms of values,
    gates and sinks of each token stand for the norms of queries and keys (Inkling 2). None: none.
    """
    own_kernels: bool = False
    """Whether each token adds to the kernels of keys and values; queries, keys and values then have
    inputs of their own.
    """

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(
                f"num_key_value_heads: got {self.kv_heads}; expected a divisor of {self.heads} "
                "attention heads. Restore the model's own config.json."
            )

    @property
    def output_scale(self) -> float:
        """Factor of the sum of a convolution and its input."""
        return 1.0 if self.clips is None else (self.kernel + 1) ** -0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStreamsSpec:
    """How the sublayers of a layer read residual streams (Inkling 2).

    Each block of layers has a stream, the sum of what its sublayers returned. A sublayer reads a
    sum of the streams so far, weighted by the scores of a learned query.
    """

    starts_block: bool
    """Whether the layer is the first of its block."""
    attention_query: str
    """Name of the tensor with the query of attention, or those of queries, keys and values; empty:
    attention reads the embedding.
    """
    mlp_query: str
    """Name of the tensor with the query of the MLP."""
