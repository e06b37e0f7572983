"""Quantization schemes: packed tensors and compressed-tensors config of a weight.

Every function also works on the meta device, so sizes are known before reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from core.api import ConfigError

Tensor = torch.Tensor

FLOAT8_HIGHEST: Final = 448.0
FLOAT4_HIGHEST: Final = 6.0
MIN_SCALE: Final = 1e-12
"""Minimum scale, also for all-zero groups."""
PIECE: Final = 1 << 22
"""Numbers rounded at once, to limit the memory for a large weight."""
FACTORS: Final = tuple(1 - 0.025 * step for step in range(17))
"""Candidate scales of a calibrated search, as fractions of the maximum-preserving scale."""
BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class Scheme:
    """A storage format. `kind` selects the rounding function."""

    kind: Literal["ints", "float8", "nvfp4", "mxfp4"]
    layout: str
    """Format name in compressed-tensors."""
    bits: int
    group: int
    """Inputs per scale; -1: whole row; 0: the largest default that divides all layers."""
    symmetric: bool = True
    packed: bool = True
    block: bool = False
    activations: Mapping[str, Any] | None = None
    """Activation quantization for other engines; ignored here."""

    def config(self, group: int) -> dict[str, Any]:
        """Return the config group."""
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
        # zero points of eight or more rows share a word: pieces have whole words
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
            scales = (numbers.abs().amax(2) / FLOAT8_HIGHEST).clamp(min=MIN_SCALE)
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
        """Return rounded integers with the scales of least error, weighted by importance."""
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
        codes_int8 = codes.view(rows.shape).to(torch.int8)
        middle = 1 << (self.bits - 1)
        if not self.packed:
            return {"weight": codes_int8, "weight_scale": scales}
        stored = {
            "weight_packed": packed_words(codes_int8.int() + middle, self.bits),
            "weight_scale": scales,
        }
        if not self.symmetric:
            points = packed_words((zeros.int() + middle).T.contiguous(), self.bits).T.contiguous()
            stored["weight_zero_point"] = points
        return stored

    def _at(self, numbers: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return codes, stored scales, zero points and dequantized numbers for a range times
        `factor`.
        """
        least = -(1 << (self.bits - 1))
        high_code = (1 << (self.bits - 1)) - 1
        low = numbers.amin(2).clamp(max=0) * factor
        high = numbers.amax(2).clamp(min=0) * factor
        if self.symmetric:
            scales = torch.maximum(-low, high) * 2 / (high_code - least)
        else:
            scales = (high - low) / (high_code - least)
        scales = scales.clamp(min=MIN_SCALE).to(dtype)
        scales = torch.where(scales == 0, torch.finfo(dtype).tiny, scales)
        own = scales.float()
        zeros = (
            torch.zeros_like(own)
            if self.symmetric
            else (least - low / own).round().clamp(least, high_code)
        )
        codes = ((numbers / own.unsqueeze(2)).round() + zeros.unsqueeze(2)).clamp(least, high_code)
        return codes, scales, zeros, (codes - zeros.unsqueeze(2)) * own.unsqueeze(2)


def _blocks(weight: Tensor) -> dict[str, Tensor]:
    """Return eight-bit floats with a scale per square block."""
    columns = weight.shape[1]
    values = []
    scales = []
    for band in torch.split(weight, BLOCK):
        filled = torch.nn.functional.pad(band.float(), (0, -columns % BLOCK))
        own = (filled.abs().view(len(band), -1, BLOCK).amax((0, 2)) / FLOAT8_HIGHEST).clamp(
            min=MIN_SCALE
        )
        scaled = band.float() / own.repeat_interleave(BLOCK)[:columns]
        values.append(scaled.clamp(-FLOAT8_HIGHEST, FLOAT8_HIGHEST).to(torch.float8_e4m3fn))
        scales.append(own)
    return {"weight": torch.cat(values), "weight_scale": torch.stack(scales)}


def _global_scale(weight: Tensor) -> Tensor:
    """Return the factor that maps the largest scale to the largest eight-bit float."""
    largest = torch.stack(
        [rows.abs().amax() for rows in torch.split(weight, max(1, PIECE // weight.shape[1]))]
    ).amax()
    return (FLOAT8_HIGHEST * FLOAT4_HIGHEST / largest.float().clamp(min=MIN_SCALE)).reshape(1)


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
"""Schemes by name of --scheme."""
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
"""llm-compressor's names, lower case."""
CHOICES: Final = (128, 64, 32, 16)
"""Default group sizes to try."""


def group_for(scheme: Scheme, requested: int | None, inputs: Mapping[str, int]) -> int:
    """Return the group size of a scheme.

    Raises `ConfigError` if it does not divide the inputs of a weight (`inputs`, by name).
    """
    if requested is not None and scheme.group != 0:
        raise ConfigError(
            "--group-size is for integers of int8 and fewer bits; this scheme has groups of its "
            "own."
        )
    if requested is not None and requested < 1 and requested != -1:
        raise ConfigError(
            f"--group-size: got {requested}; expected 1 or more, or -1 for a whole row."
        )
    group = (
        requested
        or scheme.group
        or next((size for size in CHOICES if not _indivisible(size, inputs)), -1)
    )
    odd = _indivisible(group, inputs)
    if odd:
        fitting = [
            str(size) for size in (8, *reversed(CHOICES), 256) if not _indivisible(size, inputs)
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


def _indivisible(group: int, inputs: Mapping[str, int]) -> list[str]:
    return [name for name, width in inputs.items() if group > 0 and width % group]


WORD: Final = 32
MIDDLES: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Midpoints between the four-bit floats 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""
SIGN: Final = 8


def packed_words(codes: Tensor, bits: int) -> Tensor:
    """Pack unsigned int32 numbers of `bits` bits along the last axis into int32 words, lowest
    first.
    """
    count = codes.shape[-1]
    filled = torch.nn.functional.pad(codes, (0, -count % WORD)).to(torch.int64)
    lines = filled.view(*codes.shape[:-1], -1, WORD)  # 32 numbers take `bits` words
    words = [torch.zeros_like(lines[..., 0]) for _ in range(bits)]
    for index in range(WORD):
        word, shift = divmod(index * bits, WORD)
        words[word] = words[word] | lines[..., index] << shift
        if shift + bits > WORD:
            words[word + 1] = words[word + 1] | lines[..., index] >> (WORD - shift)
    stream = torch.stack(words, -1).flatten(-2) & 0xFFFFFFFF
    signed = torch.where(stream >= 1 << (WORD - 1), stream - (1 << WORD), stream)
    return signed.to(torch.int32)[..., : -(-count * bits // WORD)].contiguous()


def nearest_four_bit(numbers: Tensor) -> Tensor:
    """Return uint8 codes of the nearest four-bit floats (E2M1), ties to even."""
    size = numbers.abs()
    codes = torch.zeros_like(numbers, dtype=torch.uint8)
    for index, middle in enumerate(MIDDLES):
        codes += (size > middle) if index % 2 == 0 else (size >= middle)
    return codes + SIGN * (numbers < 0).to(torch.uint8)


def packed_nibbles(codes: Tensor) -> Tensor:
    """Pack two codes per byte along the last axis, the first in the low nibble."""
    return codes[..., 0::2] | codes[..., 1::2] << 4
