"""A layer that continues a decoder's hidden states by one token more, as checkpoints have it behind the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.spec.decoder import LayerSpec
    from core.spec.parts import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadSpec:
    """It reads the embedding of a token beside the hidden state before it: both normalised, then a product of the two."""

    layer: LayerSpec
    norm: NormSpec
    """Of the embedding and of the hidden state, each with weights of its own."""
    stored: str
    """Checkpoint prefix of the layer."""
    tensors: tuple[str, ...]
    """Patterns of all names that belong to it ..."""
    ignored: tuple[str, ...] = ()
    """... and of those that are copies of the decoder's own embedding and head."""
    token_norm: str
    hidden_norm: str
    product: str
    """These three are whole names, without `.weight`."""
    product_bias: bool = False
    hidden_first: bool = False
    """The product reads the hidden state before the embedding."""
    final_norm: str = ""
    """Of what the head reads; empty: it reads the stream as it is."""
    continues_normed: bool = False
    """The next step reads what the head does, not the stream before that norm."""


def layer_behind(layer: LayerSpec, norm: NormSpec, index: int) -> AheadSpec:
    """Return the layer that is stored as the `index`-th, behind a decoder's own, with all that belongs to it."""
    stored = f"model.layers.{index}"
    return AheadSpec(
        layer=layer,
        norm=norm,
        stored=stored,
        tensors=(f"{stored}.*",),
        ignored=(f"{stored}.embed_tokens.*", f"{stored}.shared_head.head.*", "*.rotary_emb.inv_freq"),
        token_norm=f"{stored}.enorm",
        hidden_norm=f"{stored}.hnorm",
        product=f"{stored}.eh_proj",
        final_norm=f"{stored}.shared_head.norm",
    )
