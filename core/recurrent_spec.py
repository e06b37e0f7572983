"""Layers that keep a state of fixed size instead of keys and values, as facts. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import ModelError

if TYPE_CHECKING:
    from core.model_spec import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """A state space of channels: a short convolution, then decay by one number per channel, state and token."""

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
    """Normalises what steps are computed from, what is written and what is read, each with weights of its own."""

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
    """Factors on the first product's five parts: gate, input, what is written, what is read, step."""
    out_scale: float = 1.0

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "head_size", "state_size", "groups", "kernel")
        if self.heads % self.groups:
            raise ModelError(f"{self.heads} heads of a state space are not in {self.groups} groups of equal size.")

    @property
    def width(self) -> int:
        """Width of what all heads hold together."""
        return self.heads * self.head_size


RecurrentSpec = MambaSpec | Mamba2Spec


def _at_least_one(spec: object, *names: str) -> None:
    for name in names:
        if getattr(spec, name) < 1:
            raise ModelError(f"a state space has {name} {getattr(spec, name)}; it must be at least 1.")
