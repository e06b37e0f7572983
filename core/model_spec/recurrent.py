"""Layers that keep a state of fixed size instead of keys and values, as facts. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from core.errors import ModelError

if TYPE_CHECKING:
    from core.model_spec.parts import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """A state space of channels: a short convolution, then decay by one number per channel, state
    and token.
    """

    width: int
    state_size: int
    """Numbers kept for each channel."""
    step_rank: int
    """Width of what the steps of all channels are computed from."""
    kernel: int = 4
    """Tokens that the convolution sees."""
    bias: bool = False
    conv_bias: bool = True
    norm: NormSpec | None = None
    """Normalises what steps are computed from, what is written and what is read, each with weights
    of its own.
    """

    def __post_init__(self) -> None:
        _at_least_one(self, "width", "state_size", "step_rank", "kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec:
    """A state space of heads: a short convolution, then decay by one number per head and token."""

    heads: int
    head_size: int
    state_size: int
    """Numbers kept for each of a head's."""
    groups: int = 1
    """Heads of a group share what is written to and read from their states."""
    kernel: int = 4
    """Tokens that the convolution sees."""
    bias: bool = False
    conv_bias: bool = True
    least_step: float = 0.0
    most_step: float = float("inf")
    """Bounds on how far a token moves the state."""
    norm: NormSpec | None = None
    """Normalises the result of each group; None: it is only gated."""
    norm_first: bool = False
    """The norm comes before the gate, not after it."""
    out_bias: bool | None = None
    """None: as `bias`."""
    in_scale: float = 1.0
    """Factor on what the layer reads."""
    scales: tuple[float, ...] = ()
    """Factors on the first product's five parts: gate, input, what is written, what is read, step.
    """
    out_scale: float = 1.0

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "head_size", "state_size", "groups", "kernel")
        if self.heads % self.groups:
            raise ModelError(
                f"{self.heads} heads of a state space are not in {self.groups} groups of equal "
                "size."
            )

    @property
    def width(self) -> int:
        """Width of what all heads hold together."""
        return self.heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """A memory of each head that a token first forgets a part of, then corrects where its key finds
    another value.
    """

    heads: int
    key_heads: int
    """Value heads of equal number share the query and the key of one of these."""
    key_size: int
    value_size: int
    layout: Literal["grouped", "joined", "apart", "low_rank"]
    """How checkpoints keep the first products: by key head in two tensors; queries, keys and values
    in one and each
    other in its own; each in its own; so with forgetting, by channel, and gate through a width of
    `key_size`.
    """
    eps: float = 1e-6
    """Of the norm of each head's result."""
    kernel: int = 4
    """Tokens that the convolution sees."""
    most_correction: float = 1.0
    """Up to 2: a memory may swing to the other side."""

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "key_heads", "key_size", "value_size", "kernel")
        if self.heads % self.key_heads:
            raise ModelError(
                f"{self.heads} value heads do not divide among {self.key_heads} key heads."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSpec:
    """A memory of each head that fades at a fixed rate."""

    heads: int
    head_size: int
    rates: tuple[float, ...]
    """Of each head: after a token there is exp(-rate) left."""
    activation: str = "silu"
    """Of queries, keys and values."""
    eps: float = 1e-6
    """Of the norm of all heads' results."""

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "head_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedConvSpec:
    """A short convolution between two gates; its last inputs are all it keeps."""

    kernel: int = 3
    bias: bool = False

    def __post_init__(self) -> None:
        _at_least_one(self, "kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class RgLruSpec:
    """A number of each channel that fades as far as the token says, behind a short convolution."""

    width: int
    heads: int
    """Gates of a channel are computed from the channels of its head."""
    activation: str
    kernel: int = 4

    def __post_init__(self) -> None:
        _at_least_one(self, "width", "heads", "kernel")
        if self.width % self.heads:
            raise ModelError(f"lru_width {self.width} does not divide into {self.heads} heads.")


RecurrentSpec = MambaSpec | Mamba2Spec | GatedDeltaSpec | LightningSpec | GatedConvSpec | RgLruSpec


def recurrent_obstacle(spec: RecurrentSpec | None, ranks: int) -> str | None:
    """Say why so many ranks cannot split a recurrent layer."""
    if spec is None or ranks == 1:
        return None
    for name in ("key_heads", "heads", "width"):
        if getattr(spec, name, 0) % ranks:
            return (
                f"does not divide the {name} of the model's recurrent layers, {getattr(spec, name)}"
            )
    if isinstance(spec, Mamba2Spec) and spec.groups % ranks and ranks % spec.groups:
        return f"neither divides the {spec.groups} groups of the model's state spaces nor is a multiple of them"
    return None


def _at_least_one(spec: object, *names: str) -> None:
    for name in names:
        if getattr(spec, name) < 1:
            raise ModelError(
                f"a recurrent layer has {name} {getattr(spec, name)}; it must be at least 1."
            )
