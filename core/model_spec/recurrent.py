"""Recurrent layers as data: Mamba, Mamba 2, gated delta rule, lightning attention, RG-LRU, RWKV,
mLSTM.

Their state has a fixed size per sequence. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from core.errors import ModelError

if TYPE_CHECKING:
    from core.model_spec.attention import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Mamba: a short convolution, then a selective scan over channels."""

    width: int
    state_size: int
    """State elements per channel."""
    dt_rank: int
    """Rank of the dt projection."""
    kernel: int = 4
    """Kernel size of the convolution, in tokens."""
    activation: str = "silu"
    """Activation of the convolution's output."""
    bias: bool = False
    conv_bias: bool = True
    norm: NormSpec | None = None
    """Norm of dt, B and C, each with its own weights; None: no norm."""
    heads: int = 0
    """Groups of channels (Zamba), each with its own projections to dt, B and C; 0: none."""

    def __post_init__(self) -> None:
        _at_least_one(self, "width", "state_size", "dt_rank", "kernel")
        if self.heads and self.width % self.heads:
            raise ModelError(
                f"n_mamba_heads: got {self.heads}; expected a divisor of width {self.width}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec:
    """Mamba 2: a short convolution, then a state-space scan with one decay per head and token."""

    heads: int
    head_size: int
    state_size: int
    """State elements per head element."""
    groups: int = 1
    """Groups of heads that share B and C."""
    kernel: int = 4
    """Kernel size of the convolution, in tokens."""
    activation: str = "silu"
    """Activation of the convolution's output."""
    bias: bool = False
    conv_bias: bool = True
    dt_min: float = 0.0
    dt_max: float = float("inf")
    """Bounds of dt: `dt_min` to `dt_max`."""
    norm: NormSpec | None = None
    """Norm of each group's output; None: the output is only gated. With `dt_rank`, norm of dt, B
    and C instead.
    """
    dt_rank: int = 0
    """Rank of the dt projection, where dt, B and C are projected from the convolution's output
    (PLaMo 2); 0: from the layer's input.
    """
    norm_first: bool = False
    """Whether the norm is applied before the gate."""
    out_bias: bool | None = None
    """Bias of the output projection; None: as `bias`."""
    in_scale: float = 1.0
    """Factor on the layer input."""
    scales: tuple[float, ...] = ()
    """Factors on the parts of the input projection: gate, x, B, C, dt."""
    out_scale: float = 1.0

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "head_size", "state_size", "groups", "kernel")
        if self.heads % self.groups:
            raise ModelError(
                f"n_groups: got {self.groups}; expected a divisor of {self.heads} heads."
            )

    @property
    def width(self) -> int:
        """Total width of the heads."""
        return self.heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """Gated delta rule: a key-value state per head, with decay and error-correcting writes."""

    heads: int
    key_heads: int
    """Query and key heads; each is shared by `heads // key_heads` value heads."""
    key_size: int
    value_size: int
    layout: Literal["grouped", "joined", "apart", "low_rank", "full_rank"]
    """Layout of the input projections in checkpoints.

    "grouped": two tensors by key head; "joined": q, k and v in one tensor; "apart": one tensor
    each; "low_rank": one tensor each, with low-rank decay (per channel) and gate; "full_rank": as
    before, with one product for decay and gate each.
    """
    decay_floor: float | None = None
    """Lower bound of the logarithm of the decay, reached through a sigmoid; None: no bound."""
    eps: float = 1e-6
    """Epsilon of the norm of each head's output."""
    kernel: int = 4
    """Kernel size of the convolution, in tokens."""
    activation: str = "silu"
    """Activation of the convolution's output."""
    sigmoid_gate: bool = False
    """Whether the output's gate is a sigmoid, as it is with a decay per channel; else SiLU."""
    max_beta: float = 1.0
    """Maximum write strength; 2 allows negative eigenvalues."""

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "key_heads", "key_size", "value_size", "kernel")
        if self.heads % self.key_heads:
            raise ModelError(
                f"key heads: got {self.key_heads}; expected a divisor of {self.heads} value heads."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSpec:
    """Lightning attention: a key-value state per head with a fixed decay."""

    heads: int
    head_size: int
    rates: tuple[float, ...]
    """Decay rate of each head; a token multiplies the state by exp(-rate)."""
    activation: str = "silu"
    """Activation of queries, keys and values."""
    eps: float = 1e-6
    """Epsilon of the norm of the output."""

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "head_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedConvSpec:
    """Short convolution between two gates (LFM2); its state is the convolution's last inputs."""

    kernel: int = 3
    bias: bool = False

    def __post_init__(self) -> None:
        _at_least_one(self, "kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class RgLruSpec:
    """RG-LRU of Griffin: a gated linear recurrence over channels, after a short convolution."""

    width: int
    heads: int
    """Blocks of the block-diagonal gate projections."""
    activation: str
    kernel: int = 4

    def __post_init__(self) -> None:
        _at_least_one(self, "width", "heads", "kernel")
        if self.width % self.heads:
            raise ModelError(
                f"lru_width: got {self.width}; expected a multiple of {self.heads} heads."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvTimeMixSpec:
    """Time mixing of RWKV 4: an average of earlier values with exponential weights per channel."""

    width: int

    def __post_init__(self) -> None:
        _at_least_one(self, "width")


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvChannelMixSpec:
    """Channel mixing of RWKV 4: an MLP that reads a mixture of a token and the one before it."""

    width: int

    def __post_init__(self) -> None:
        _at_least_one(self, "width")


@dataclass(frozen=True, slots=True, kw_only=True)
class MLstmSpec:
    """mLSTM: a key-value state per head, with an exponential input gate and a forget gate."""

    heads: int
    key_size: int
    value_size: int
    gate_softcap: float
    """Soft cap of both gates."""
    norm_eps: float = 1e-6
    """Epsilon of the LayerNorm of each head's output."""
    eps: float = 1e-6
    """Addend of the normaliser."""

    def __post_init__(self) -> None:
        _at_least_one(self, "heads", "key_size", "value_size")


RecurrentSpec = (
    MambaSpec
    | Mamba2Spec
    | GatedDeltaSpec
    | LightningSpec
    | GatedConvSpec
    | RgLruSpec
    | RwkvTimeMixSpec
    | RwkvChannelMixSpec
    | MLstmSpec
)


def recurrent_split_error(spec: RecurrentSpec | None, ranks: int) -> str | None:
    """Return why `ranks` ranks cannot split a recurrent layer; None: they can."""
    if spec is None or ranks == 1:
        return None
    for name in ("key_heads", "heads", "width"):
        if getattr(spec, name, 0) % ranks:
            return (
                f"does not divide the {name} of the model's recurrent layers, {getattr(spec, name)}"
            )
    if isinstance(spec, Mamba2Spec) and spec.groups % ranks and ranks % spec.groups:
        return (
            f"neither divides the {spec.groups} groups of the model's state spaces nor is a "
            "multiple of them"
        )
    return None


def _at_least_one(spec: object, *names: str) -> None:
    for name in names:
        if getattr(spec, name) < 1:
            raise ModelError(
                f"{name} of a recurrent layer: got {getattr(spec, name)}; expected at least 1."
            )
