"""What each scheme makes of a weight, and what a compressed-tensors config says of it.

Every function takes tensors without memory, too: so sizes are known before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from builtin_plugins.commands.quantize.packing import nearest_four_bit, packed_nibbles, packed_words
from core.api import ConfigError

Tensor = torch.Tensor

FLOAT8_HIGHEST: Final = 448.0
FLOAT4_HIGHEST: Final = 6.0
LEAST: Final = 1e-12
"""What a scale is at least: numbers that are all zero have one, too."""
PIECE: Final = 1 << 22
"""Numbers that are rounded at once, so that a large weight needs little memory beside its own."""
FACTORS: Final = tuple(1 - 0.025 * step for step in range(17))
"""Scales that are tried where it is known how large inputs are, as parts of the one that holds the
largest number.
"""
BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class Scheme:
    """How numbers are kept. `kind` says which function rounds them."""

    kind: Literal["ints", "float8", "nvfp4", "mxfp4"]
    layout: str
    """The format that compressed-tensors calls it by."""
    bits: int
    group: int
    """Inputs that share a scale; -1: all of a row; 0: the largest of some that divides all."""
    symmetric: bool = True
    packed: bool = True
    block: bool = False
    activations: Mapping[str, Any] | None = None
    """What other engines round activations to; this one does not."""

    def config(self, group: int) -> dict[str, Any]:
        """Return the group of the config."""
        kind = "int" if self.kind == "ints" else "float"
        strategy = {"nvfp4": "tensor_group", "mxfp4": "group"}.get(
            self.kind, "group" if group > 0 else "channel"
        )
        weights: dict[str, Any] = {
            "num_bits": self.bits,
            "type": kind,
            "symmetric": self.symmetric,
            "strategy": "block" if self.block else strategy,
            "group_size": None if self.block or group < 0 else group,
            "block_structure": [BLOCK, BLOCK] if self.block else None,
            "dynamic": False,
            "actorder": None,
            "observer": "minmax",
        }
        if self.kind in SCALE_TYPES:
            weights["scale_dtype"] = SCALE_TYPES[self.kind]
        inputs = None if self.activations is None else dict(self.activations)
        return {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": inputs,
            "output_activations": None,
            "format": self.layout,
        }

    def compress(
        self, weight: Tensor, group: int, importance: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors of a weight [out, in] by suffix.

        `importance`: [in], mean squares of its inputs.
        """
        if self.block:
            return _blocks(weight)
        whole = _global_scale(weight) if self.kind == "nvfp4" else None
        step = max(1, PIECE // weight.shape[1])
        # zero points are packed eight and more rows in a word: pieces hold whole words
        step = max(32, step // 32 * 32)
        found = [self._rows(rows, group, importance, whole) for rows in torch.split(weight, step)]
        joined = {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
        if whole is not None:
            joined["weight_global_scale"] = whole
        if self.kind == "ints" and self.packed:
            joined["weight_shape"] = torch.tensor(weight.shape)
        return joined

    def _rows(
        self, rows: Tensor, group: int, importance: Tensor | None, whole: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the tensors of some rows."""
        numbers = rows.float().view(len(rows), -1, rows.shape[1] if group < 0 else group)
        if self.kind == "float8":
            scales = (numbers.abs().amax(2) / FLOAT8_HIGHEST).clamp(min=LEAST)
            values = (numbers / scales.unsqueeze(2)).clamp(-FLOAT8_HIGHEST, FLOAT8_HIGHEST)
            return {
                "weight": values.view(rows.shape).to(torch.float8_e4m3fn),
                "weight_scale": scales,
            }
        if self.kind == "ints":
            return self._integers(rows, numbers, importance)
        if whole is None:
            exponents = (numbers.abs().amax(2).clamp(min=2.0**-120) / FLOAT4_HIGHEST).log2().ceil()
            codes = nearest_four_bit(numbers / exponents.exp2().unsqueeze(2)).view(rows.shape)
            return {
                "weight_packed": packed_nibbles(codes),
                "weight_scale": (exponents + 127).to(torch.uint8),
            }
        scales = (numbers.abs().amax(2) * whole / FLOAT4_HIGHEST).clamp(2.0**-9, FLOAT8_HIGHEST)
        stored = scales.to(torch.float8_e4m3fn)
        codes = nearest_four_bit(numbers / (stored.float() / whole).unsqueeze(2)).view(rows.shape)
        return {"weight_packed": packed_nibbles(codes), "weight_scale": stored}

    def _integers(
        self, rows: Tensor, numbers: Tensor, importance: Tensor | None
    ) -> dict[str, Tensor]:
        """Return rounded integers with the scales that lose least, weighed by how large inputs are."""
        weights = None if importance is None else importance.float().view(1, *numbers.shape[1:])
        best = self._at(numbers, 1.0, rows.dtype)
        if weights is not None:
            least = ((best[3] - numbers).square() * weights).sum(2)
            for factor in FACTORS[1:]:
                found = self._at(numbers, factor, rows.dtype)
                error = ((found[3] - numbers).square() * weights).sum(2)
                better = error < least
                least = torch.where(better, error, least)
                best = tuple(
                    torch.where(better.unsqueeze(2) if new.ndim == 3 else better, new, old)
                    for new, old in zip(found, best, strict=True)
                )
        codes, scales, zeros, _ = best
        kept = codes.view(rows.shape).to(torch.int8)
        middle = 1 << (self.bits - 1)
        if not self.packed:
            return {"weight": kept, "weight_scale": scales}
        stored = {
            "weight_packed": packed_words(kept.int() + middle, self.bits),
            "weight_scale": scales,
        }
        if not self.symmetric:
            points = packed_words((zeros.int() + middle).T.contiguous(), self.bits).T.contiguous()
            stored["weight_zero_point"] = points
        return stored

    def _at(self, numbers: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return codes, scales of the stored type, zero points, and what they stand for, for a
        range times `factor`.
        """
        least = -(1 << (self.bits - 1))
        most = (1 << (self.bits - 1)) - 1
        low = numbers.amin(2).clamp(max=0) * factor
        high = numbers.amax(2).clamp(min=0) * factor
        if self.symmetric:
            scales = torch.maximum(-low, high) * 2 / (most - least)
        else:
            scales = (high - low) / (most - least)
        scales = scales.clamp(min=LEAST).to(dtype)
        scales = torch.where(scales == 0, torch.finfo(dtype).tiny, scales)
        own = scales.float()
        zeros = (
            torch.zeros_like(own)
            if self.symmetric
            else (least - low / own).round().clamp(least, most)
        )
        codes = ((numbers / own.unsqueeze(2)).round() + zeros.unsqueeze(2)).clamp(least, most)
        return codes, scales, zeros, (codes - zeros.unsqueeze(2)) * own.unsqueeze(2)


def _blocks(weight: Tensor) -> dict[str, Tensor]:
    """Return eight-bit floats with a scale for each square of them."""
    columns = weight.shape[1]
    values = []
    scales = []
    for band in torch.split(weight, BLOCK):
        filled = torch.nn.functional.pad(band.float(), (0, -columns % BLOCK))
        own = (filled.abs().view(len(band), -1, BLOCK).amax((0, 2)) / FLOAT8_HIGHEST).clamp(
            min=LEAST
        )
        scaled = band.float() / own.repeat_interleave(BLOCK)[:columns]
        values.append(scaled.clamp(-FLOAT8_HIGHEST, FLOAT8_HIGHEST).to(torch.float8_e4m3fn))
        scales.append(own)
    return {"weight": torch.cat(values), "weight_scale": torch.stack(scales)}


def _global_scale(weight: Tensor) -> Tensor:
    """Return what scales are multiplied by so that the largest of them is the largest eight-bit
    float.
    """
    largest = torch.stack(
        [rows.abs().amax() for rows in torch.split(weight, max(1, PIECE // weight.shape[1]))]
    ).amax()
    return (FLOAT8_HIGHEST * FLOAT4_HIGHEST / largest.float().clamp(min=LEAST)).reshape(1)


def _inputs(kind: str, bits: int, strategy: str, group: int | None = None) -> dict[str, Any]:
    facts = {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "strategy": strategy,
        "dynamic": True,
    }
    return facts if group is None else {**facts, "group_size": group}


SCALE_TYPES: Final = {"nvfp4": "torch.float8_e4m3fn", "mxfp4": "torch.uint8"}
SCHEMES: Final[Mapping[str, Scheme]] = {
    "int8": Scheme("ints", "pack-quantized", 8, 0),
    "int4": Scheme("ints", "pack-quantized", 4, 0),
    "int4-asym": Scheme("ints", "pack-quantized", 4, 0, symmetric=False),
    "int3": Scheme("ints", "pack-quantized", 3, 0),
    "int2": Scheme("ints", "pack-quantized", 2, 0),
    "w8a8": Scheme(
        "ints", "int-quantized", 8, -1, packed=False, activations=_inputs("int", 8, "token")
    ),
    "fp8": Scheme("float8", "float-quantized", 8, -1, activations=_inputs("float", 8, "token")),
    "fp8-block": Scheme(
        "float8",
        "float-quantized",
        8,
        -1,
        block=True,
        activations=_inputs("float", 8, "group", BLOCK),
    ),
    "nvfp4": Scheme("nvfp4", "nvfp4-pack-quantized", 4, 16),
    "mxfp4": Scheme("mxfp4", "mxfp4-pack-quantized", 4, 32),
}
"""By the name that users type."""
OTHER_NAMES: Final = {
    "w8a16": "int8",
    "w4a16": "int4",
    "w4a16_asym": "int4-asym",
    "int8_w8a8": "w8a8",
    "fp8_dynamic": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4a16": "nvfp4",
    "mxfp4a16": "mxfp4",
}
"""What llm-compressor calls them, in small letters."""
CHOICES: Final = (128, 64, 32, 16)
"""Groups that are tried where none is asked for."""


def group_for(scheme: Scheme, asked: int | None, inputs: Mapping[str, int]) -> int:
    """Return the group of a scheme.

    Raises `ConfigError` where it does not divide the inputs of a weight (`inputs`, by name).
    """
    if asked is not None and scheme.group != 0:
        raise ConfigError(
            "--group-size is for integers of int8 and fewer bits; this scheme has groups of its "
            "own."
        )
    if asked is not None and asked < 1 and asked != -1:
        raise ConfigError(
            f"--group-size {asked} is no number of inputs; give 1 or more, or -1 for all of a row."
        )
    group = (
        asked or scheme.group or next((size for size in CHOICES if not _odd_ones(size, inputs)), -1)
    )
    odd = _odd_ones(group, inputs)
    if odd:
        fitting = [
            str(size) for size in (8, *reversed(CHOICES), 256) if not _odd_ones(size, inputs)
        ]
        raise ConfigError(
            f"{odd[0]} has {inputs[odd[0]]} inputs, which do not divide into groups of {group}; "
            + (
                f"--group-size may be {', '.join(fitting)}"
                if fitting
                else "no group divides the inputs of all layers"
            )
            + ", or leave the module plain with --ignore."
        )
    return group


def _odd_ones(group: int, inputs: Mapping[str, int]) -> list[str]:
    return [name for name, width in inputs.items() if group > 0 and width % group]
