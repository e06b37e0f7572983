"""Plain weights of any checkpoint as eight-bit floats with a scale for each row, rounded while they
load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import Grouping, ScaledFloats
from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.api import ModelError, Part
from core.models.layers.weights import refuse_integers

HIGHEST: Final = 448.0
"""Of eight-bit floats with four bits of exponent."""


class RowsRounded(StoredFormat):
    """A plain weight; its scales are those of whole rows, so that ranks which cut them round alike."""

    suffixes = ("weight",)
    reads_plain = True
    grouping = Grouping(8, -1, is_float=True)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return part.shape

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> ScaledFloats:
        """Return the rank's part, rounded to the nearest."""
        (weight,) = tensors.values()
        refuse_integers(weight)
        rows = part.rows(weight.T if part.transposed else weight)
        scales = rows.abs().amax(1, keepdim=True).float() / HIGHEST
        own = part.columns(rows)
        values = (own.float() / torch.where(scales == 0, 1, scales)).clamp_(-HIGHEST, HIGHEST)
        return ScaledFloats(values.to(torch.float8_e4m3fn), scales, own.shape[1])


class Fp8Rounded(StoredMethod):
    """Linear layers and experts; embedding and head stay plain."""

    name = "fp8"
    rounds_plain = True

    def __init__(self) -> None:
        super().__init__(None)
        self._format = RowsRounded()

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return the one format."""
        del prefix
        return self._format


class DeepSpeedFp(Fp8Rounded):
    """The same for checkpoints whose config asks DeepSpeed for eight or six bits; what is stored
    are plain weights.

    Those that were to become six bits become eight, which are nearer to them.
    """

    name = "deepspeedfp"
    example_config: Final = {"quant_method": "deepspeedfp", "bits": 8, "group_size": 512}

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        bits = (config or {}).get("bits", 8)
        if bits not in (6, 8):
            raise ModelError(
                f"quantization_config: {bits!r:.80} bits; DeepSpeed's floats have 6 or 8. Restore "
                "the config from where the "
                "model came."
            )
