"""Latent attention (MLA) as facts: keys and values of all heads come from one small vector per
token, which is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from core.errors import ModelError

if TYPE_CHECKING:
    from core.model_spec.parts import NormSpec, Temperature
    from core.model_spec.rope import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """Causal attention of one layer over cached latents.

    A head's key is a product of the latent, then a part that all heads share and that alone turns;
    its value is another product of the latent.
    """

    causal: ClassVar[bool] = True
    heads: int
    key_size: int
    """Of each head's own part of a key."""
    shared_size: int
    value_size: int
    rank: int
    """Size of the latent."""
    rope: RopeSpec | None
    """Of the shared part."""
    norm: NormSpec
    """Of the latent, and of the queries' latent, each with weights of its own."""
    scale: float
    """Factor on the scores."""
    query_rank: int | None = None
    """Size of the latent that queries are a product of; None: they are one of the layer's input."""
    latent_scale: float = 1.0
    """Factor on the normalised latent."""
    temperature: Temperature | None = None
    bias: bool = False
    """The products that give latents, and the output's, have biases."""

    def __post_init__(self) -> None:
        for name in ("heads", "key_size", "shared_size", "value_size", "rank"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"latent attention has {name} {getattr(self, name)}; it must be at least 1."
                )
        if self.rope is not None and self.rope.size != self.shared_size:
            raise ModelError(
                f"rotary size {self.rope.size} is not qk_rope_head_dim {self.shared_size}; check "
                "partial_rotary_factor."
            )

    @property
    def head_size(self) -> int:
        """Elements that are cached per token, and compared with a query."""
        return self.rank + self.shared_size
