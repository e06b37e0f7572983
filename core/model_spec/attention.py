"""What an attention part of a layer is, as facts. Knows no torch, no file, no model by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core.errors import ModelError
from core.model_spec.parts import NormSpec, Temperature
from core.model_spec.rope import RopeSpec


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Return how much scores of each head fall per token of distance: 2 ** -most at the last of a
    power of two.
    """
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-most * i / whole) for i in range(1, whole + 1)]
    between = [2.0 ** (-most * i / (2 * whole)) for i in range(1, 2 * whole, 2)]
    return tuple((slopes + between)[:heads])


@dataclass(frozen=True, slots=True)
class RelativeSpec:
    """Scores get a learned number by head and distance: one for each near distance, further off for
    ever more.

    Half of the numbers are for distances of their own, the others share those up to `most`, beyond
    which is the last.
    """

    numbers: int = 32
    most: int = 128
    both_ways: bool = False
    """Half of the numbers are for keys ahead; where causality hides those, all are for keys behind.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention of one layer over cached keys and values, or over all of a prompt at once."""

    heads: int
    kv_heads: int
    head_size: int
    reads: int = 0
    """Width of what it reads, where that is not the stream's."""
    rope: RopeSpec | None = None
    """None: no rotary positions in this layer."""
    scale: float | None = None
    """Factor on the scores; None: 1 / sqrt(head_size)."""
    causal: bool = True
    """False: every token sees those behind it as well.

    Nothing is cached, so a prompt is computed in one step.
    """
    window: int | None = None
    """Tokens visible, the current one included, on each side unless causal; None: all."""
    chunk: int | None = None
    """Only tokens of the current chunk of so many positions are visible."""
    softcap: float | None = None
    alibi: tuple[float, ...] = ()
    """Per head: how much a score falls with each token of distance."""
    relative: RelativeSpec | None = None
    sinks: bool = False
    """Each head has a learned score that takes its share of the weights and gives nothing."""
    qk_norm: NormSpec | None = None
    """Normalises queries and keys."""
    qk_norm_over: Literal["head", "own", "all"] = "head"
    """One norm for every head, each head its own weights, or one norm over all heads together."""
    qk_norm_turned: bool = False
    """The norm comes after the rotation instead of before."""
    qkv_clip: float | None = None
    """Queries, keys and values are cut off at plus and minus this."""
    temperature: Temperature | None = None
    v_norm: NormSpec | None = None
    key_is_value: bool = False
    """Values are the keys as they were before norm and rotation."""
    shares: int | None = None
    """The earlier layer whose keys and values are attended to; this one has none of its own."""
    inner_norm: NormSpec | None = None
    """Normalises what the heads give, before the output product."""
    gate: bool = False
    """What the heads give is multiplied by the sigmoid of a product of the input, as wide."""
    in_scale: float = 1.0
    """Factor on what attention reads."""
    out_scale: float = 1.0
    qkv_bias: bool = False
    key_bias: bool = True
    """False: the key's product has no bias even if the others have one."""
    out_bias: bool = False
    kv_dtype: str | None = None
    """What keys and values are cached as; None: as the quantization method says, or in the model's
    dtype.
    """

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_size"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"attention has {name} {getattr(self, name)}; it must be at least 1."
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
            self.chunk or self.softcap or self.alibi or self.sinks or self.shares is not None
        ):
            raise ModelError(
                "attention to both sides has no chunks, caps, slopes, sinks or keys of another "
                "layer."
            )
        if self.alibi and len(self.alibi) != self.heads:
            raise ModelError(
                f"there are {len(self.alibi)} slopes of positions for {self.heads} attention heads."
            )
