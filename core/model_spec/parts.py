"""What layers of several kinds are made of: norms, and how queries grow with their position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation: root mean square, or layer norm with mean and (usually) bias."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    offset: float = 0.0
    """Added to the stored weight."""
    bias: bool = False
    weight: bool = True
    """False: nothing is stored, the norm only scales."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries grow with their position p: times 1 + scale * log(1 + floor((p + shift) / length))."""

    scale: float
    length: int
    shift: int = 0
