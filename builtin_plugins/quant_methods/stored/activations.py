"""Rounding of layer inputs, as quantized checkpoints specify it. Independent of formats.

Scales are computed per row or group, never per batch: results are batch-invariant.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from core.api import ModelError

if TYPE_CHECKING:
    from core.api import EngineConfig

Tensor = torch.Tensor
ScaleKind = Literal["float", "e8m0", "e8m0_ceil", "e4m3", "e4m3_alone"]

log = logging.getLogger(__name__)

E4M3_MAX: Final = 448.0
OPTION: Final = "activation_quantization"


@dataclass(frozen=True, slots=True)
class FloatType:
    """A float type of up to eight bits."""

    largest: float
    mantissa_bits: int
    min_exponent: int
    """Exponent of the smallest normal number."""

    def round(self, x: Tensor) -> Tensor:
        """Return float32 x rounded to nearest, ties to even, and clamped.

        Bits are rounded as integers: torch converts to float8 element by element, at a sixth of
        the speed.
        """
        dropped = FLOAT32_MANTISSA_BITS - self.mantissa_bits
        bits = x.view(torch.int32)
        odd = bits.bitwise_right_shift(dropped).bitwise_and_(1)
        normal = odd.add_(bits).add_((1 << (dropped - 1)) - 1).bitwise_and_(-1 << dropped)
        shift = 1.5 * 2.0 ** (FLOAT32_MANTISSA_BITS + self.min_exponent - self.mantissa_bits)
        subnormal = (x + shift).sub_(shift)
        rounded = torch.where(
            x.abs() < 2.0**self.min_exponent, subnormal, normal.view(torch.float32)
        )
        return rounded.clamp_(-self.largest, self.largest)


FLOAT32_MANTISSA_BITS: Final = 23
FLOATS: Final[Mapping[str, FloatType]] = {
    "fp8_e4m3": FloatType(E4M3_MAX, 3, -6),
    "fp8_e5m2": FloatType(57344.0, 2, -14),
    "fp6_e2m3": FloatType(7.5, 3, 0),
    "fp6_e3m2": FloatType(28.0, 2, -2),
    "fp4": FloatType(6.0, 1, 0),
}


@dataclass(frozen=True, slots=True)
class ActivationScheme:
    """How a checkpoint expects the inputs of a layer to be rounded."""

    number: str
    """Name of a float type of `FLOATS`, or int2 to int8."""
    group_size: int = -1
    """Adjacent inputs of a row that share a scale; -1: one scale per row."""
    is_symmetric: bool = True
    """Whether integers have no zero point."""
    scale_kind: ScaleKind = "float"
    """Exponents of two (rounded to nearest or up), or e4m3, with a second scale or alone."""
    static: str = ""
    """Suffix of the tensor with a static scale; empty: scales are computed."""
    static_zero: str = ""
    """Suffix of the tensor with the zero point of a static scale."""
    is_reciprocal: bool = False
    """Whether the stored static scale divides."""
    max_amax: float = math.inf
    """Upper bound of the maximum from which a scale is computed."""
    rotation: str = ""
    """Suffix of an orthogonal matrix; adjacent inputs are rotated by it before they are rounded."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the tensors that it needs."""
        return tuple(name for name in (self.static, self.static_zero) if name)

    def describe(self) -> str:
        """Return a phrase for log lines."""
        if self.static and self.group_size <= 0:
            return f"{self.number} with static scales"
        return f"{self.number} per " + (
            "token" if self.group_size <= 0 else f"{self.group_size} inputs"
        )

    def round(self, x: Tensor, scale: float = 0.0, zero: float = 0.0) -> Tensor:
        """Return x [..., in] rounded. `scale`, `zero`: the static ones, if it has any."""
        width = x.shape[-1]
        size = min(self.group_size, width)
        if 0 < size != width:
            padded = torch.nn.functional.pad(x, (0, -width % size))
            groups = padded.reshape(*x.shape[:-1], padded.shape[-1] // size, size).float()
        else:
            groups = x.unsqueeze(-2).float()
        found = (
            self._round_integers(groups, scale, zero)
            if self.number.startswith("int")
            else self._round_floats(groups, scale)
        )
        return found.flatten(-2)[..., :width].to(x.dtype)

    def _round_integers(self, x: Tensor, scale: float, zero: float) -> Tensor:
        top = (1 << (int(self.number[3:]) - 1)) - 1
        if self.static:
            return ((x / scale).round_().add_(zero).clamp_(-top - 1, top) - zero) * scale
        if self.is_symmetric:
            scales = _nonzero(x.abs().amax(-1, keepdim=True) / top)
            return (x / scales).round_().clamp_(-top, top) * scales
        low = x.amin(-1, keepdim=True).clamp_(max=0)
        scales = _nonzero((x.amax(-1, keepdim=True).clamp_(min=0) - low) / (2 * top + 1))
        zeros = (-top - 1 - low / scales).round_()
        return ((x / scales).round_().add_(zeros).clamp_(-top - 1, top) - zeros) * scales

    def _round_floats(self, x: Tensor, scale: float) -> Tensor:
        kind = FLOATS[self.number]
        if scale and self.scale_kind == "float":
            return kind.round(x / scale) * scale
        amax = x.abs().amax(-1, keepdim=True)
        if self.scale_kind == "float":
            scales = _nonzero(amax.clamp_(max=self.max_amax) / kind.largest)
        elif self.scale_kind in ("e4m3", "e4m3_alone"):
            whole = _nonzero(amax.amax(-2, keepdim=True) / (kind.largest * E4M3_MAX))
            outer: Any = 1.0 if self.scale_kind == "e4m3_alone" else scale or whole
            scales = FLOATS["fp8_e4m3"].round(amax / (kind.largest * outer))
            scales = _nonzero(scales * outer)
        else:
            scales = self._exponents(amax, kind)
        return kind.round(x / scales) * scales

    def _exponents(self, amax: Tensor, kind: FloatType) -> Tensor:
        """Return scales that are powers of two, as the tools of microscaling formats do."""
        if self.scale_kind == "e8m0_ceil":
            exponents = torch.log2(_nonzero(amax) / kind.largest).ceil_()
        else:
            parts = torch.frexp(_nonzero(amax))  # rounded up from half a step below a power
            rounded_up = parts.mantissa >= 1 - 2.0 ** -(kind.mantissa_bits + 2)
            exponents = (parts.exponent - 1 + rounded_up - int(math.log2(kind.largest))).float()
        return torch.exp2(exponents.clamp_(-127, 127))


def _nonzero(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 1, scales)


def warn_unsupported(field: str, facts: Any) -> None:
    """Log that a config rounds inputs in a way that is not supported."""
    log.warning(
        "quantization_config: %s: got %.200s; expected a scale per tensor, token or group. Inputs "
        "are not rounded.",
        *(field, facts),
    )


MX_GROUP: Final = 32
"""Adjacent numbers of MX floats that share a scale."""
NV_GROUP: Final = 16
"""Adjacent numbers of NVFP4 that share a scale."""


def kernel_bits(scheme: ActivationScheme | None, number: str) -> int:
    """Return the bits to which kernels that multiply `number` may round rows: 4 (MXFP4 or NVFP4),
    8, or 16.

    Kernels compute a scale per row or finer; for floats, this is finer than static scales, too.
    """
    if scheme is None or scheme.number != number:
        return 16
    if number == "fp4":
        kind = scheme.scale_kind, scheme.group_size
        return 4 if kind in (("e8m0", MX_GROUP), ("e4m3", NV_GROUP)) else 16
    if scheme.scale_kind != "float":
        return 16
    is_per_row = scheme.is_symmetric and not scheme.static and scheme.group_size <= 0
    return 8 if is_per_row or number == "fp8_e4m3" else 16


class InputRounding:
    """Rounds the inputs of one matrix; a static scale is the largest of the matrix's parts."""

    def __init__(self, scheme: ActivationScheme) -> None:
        self.scheme = scheme
        self._tensors: dict[str, dict[str, float]] = {}
        self._scale = 0.0
        self._zero = 0.0
        self._rotation: Tensor | None = None

    def load(self, prefix: str, suffix: str, tensor: Tensor) -> None:
        """Hold a static scale or zero point of one part; other tensors only name the part."""
        if tensor.is_meta:  # a planned model
            return
        self._tensors.setdefault(prefix, {})
        if suffix == self.scheme.rotation:
            self._rotation = tensor.float()
        elif suffix in self.scheme.suffixes and tensor.numel():
            numbers = tensor.float()
            extreme = numbers.amin() if self.scheme.is_reciprocal else numbers.amax()
            self._tensors[prefix][suffix] = float(extreme)

    def finish(self) -> None:
        """Choose the static scale. Raises `ModelError` without a usable one."""
        name = self.scheme.static
        if not name or not self._tensors:
            return
        found = {prefix: parts[name] for prefix, parts in self._tensors.items() if name in parts}
        if not found:
            if self.scheme.scale_kind == "e4m3":
                return  # the scale of the row is used
            raise ModelError(
                f"{next(iter(self._tensors))}.{name}: got no tensor; expected the static scale of "
                "activations. Use --activation-quantization off, or the complete checkpoint."
            )
        prefix = sorted(found, key=found.__getitem__)[0 if self.scheme.is_reciprocal else -1]
        scale = found[prefix]
        if not (math.isfinite(scale) and scale > 0):
            raise ModelError(
                f"{prefix}.{name}: got {scale}; expected a finite number above 0. Download the "
                "file again."
            )
        self._scale = 1 / scale if self.scheme.is_reciprocal else scale
        self._zero = self._tensors[prefix].get(self.scheme.static_zero, 0.0)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x rounded."""
        if self._rotation is None:
            return self.scheme.round(x, self._scale, self._zero)
        rotation = self._rotation.to(x.device)
        groups = x.float().reshape(*x.shape[:-1], x.shape[-1] // len(rotation), len(rotation))
        rounded = self.scheme.round((groups @ rotation).flatten(-2), self._scale, self._zero)
        back = rounded.reshape(groups.shape) @ rotation.T
        return back.flatten(-2).to(x.dtype)


class ActivationQuantization:
    """Which layers of a model round their inputs, by `--activation-quantization`; logged once.

    auto: where a kernel multiplies rounded numbers, which is faster. On: wherever the checkpoint
    specifies it. Off: nowhere.
    """

    def __init__(self, name: str, config: EngineConfig | None) -> None:
        self._name = name
        options = {} if config is None else config.options
        self._mode: str = options.get(OPTION) or "auto"
        self.by_kernels = self._mode != "off"
        """Whether kernels may round."""
        self._rounded: Counter[str] = Counter()
        self._exact: Counter[str] = Counter()
        self._is_logged = False

    def rounding_for(self, scheme: ActivationScheme | None, backend: Any) -> InputRounding | None:
        """Return the rounding of a matrix; None: its input is not rounded, or by its kernel."""
        if scheme is None:
            return None
        rounds: Callable[[], bool] | None = getattr(backend, "rounds_inputs", None)
        by_kernel = rounds is not None and rounds()
        is_rounded = by_kernel or self._mode == "on"
        (self._rounded if is_rounded else self._exact)[scheme.describe()] += 1
        return InputRounding(scheme) if is_rounded and not by_kernel else None

    def check_used(self) -> None:
        """Raise `ModelError` if the setting has no effect."""
        if self._mode != "auto" and not (self._rounded or self._exact):
            raise ModelError(
                f"--activation-quantization: got {self._mode!r}; expected a checkpoint that "
                "specifies rounded activations, and this one does not. Remove it."
            )

    def log_once(self) -> None:
        """Log what is rounded and what is not, unless the checkpoint rounds nothing."""
        if self._is_logged or not (self._rounded or self._exact):
            return
        self._is_logged = True
        log.info(
            "%s: the checkpoint specifies rounded activations: rounded: %s; computed exactly: %s. "
            "--activation-quantization is %s",
            *(self._name, _counts(self._rounded), _counts(self._exact), self._mode),
        )


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{text} ({count} products)" for text, count in found.items()) or "none"
