"""Encoder of an encoder-decoder model as data, and the inputs it reads. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from core.errors import ModelError
from core.model_spec.attention import NormSpec
from core.model_spec.layer import LayerSpec, check_activation
from core.model_spec.names import WeightNames


class EncoderInput(msgspec.Struct, array_like=True, frozen=True):
    """Encoder input of one request: token ids or features."""

    length: int
    """Encoder positions, which take slots of the cross-attention cache."""
    token_ids: list[int] = []
    features: bytes = b""
    """Float32 features, row-major."""
    shape: tuple[int, int] = (0, 0)
    """Shape of the features: (numbers per frame, frames)."""


class EncoderFacts(msgspec.Struct, kw_only=True, frozen=True):
    """Limits of an encoder's input, and the decoder's start tokens."""

    max_len: int
    """Maximum encoder positions of one input."""
    vocab_size: int = 0
    """Vocabulary size of the encoder; 0: it reads features."""
    shape: tuple[int, int] = (0, 0)
    """Expected shape of the features."""
    start_tokens: tuple[int, ...] = ()
    """Decoder prompt of a request without one; its first token starts every decoder prompt."""


@dataclass(frozen=True, slots=True)
class FramesSpec:
    """Convolutional stem for audio features: two convolutions, the second with stride 2."""

    size: int
    """Features per frame."""
    activation: str = "gelu"

    def __post_init__(self) -> None:
        check_activation(self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """Bidirectional encoder, which runs before the decoder's first step.

    Its hidden size is the decoder's.
    """

    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None = None
    """Final norm."""
    frames: FramesSpec | None = None
    """Convolutional stem; None: tokens, with the decoder's embedding unless `names` has another."""
    vocab_size: int = 0
    """Vocabulary size of the encoder's own embedding."""
    max_len: int | None = None
    """Maximum positions; None: as the decoder. With `frames`, inputs have exactly twice as many
    frames.
    """
    embed_scale: float = 1.0
    embed_norm: NormSpec | None = None
    learned_positions: int = 0
    position_offset: int = 0
    sinusoidal_positions: bool | Literal["wide"] = False
    start_tokens: tuple[int, ...] = ()
    """Decoder prompt of a request without one; its first token starts every decoder prompt."""
    names: WeightNames = field(default_factory=WeightNames)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError("the encoder has no layers; check encoder_layers in config.json.")
        if (
            self.learned_positions
            and self.max_len is not None
            and self.max_len > self.learned_positions
        ):
            raise ModelError(
                f"encoder max_len: got {self.max_len}; expected up to {self.learned_positions} "
                "learned positions."
            )
