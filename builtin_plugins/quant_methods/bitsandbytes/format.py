"""How bitsandbytes lays out a weight: codes of a table in flat blocks with a largest number each,
or int8 rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from builtin_plugins.quant_methods.common.flat import blocks_of, numbers_of
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.common.scales import WHOLE, Shared
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import Grouping, ScaledFloats
from core.api import ModelError, Part

CODES: Final = 16
USUAL_BLOCK: Final = 64
"""Numbers of four bits that share a scale, as far as is known before any is read."""
LARGEST: Final = 127
"""What the furthest number of an int8 row is stored as."""
STATE: Final = "weight.quant_state.bitsandbytes__"
SCALES: Final = "weight.absmax"
TABLE: Final = "weight.quant_map"
NESTED_SCALES: Final = "weight.nested_absmax"
NESTED_TABLE: Final = "weight.nested_quant_map"


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the tensor of JSON beside a weight says of it."""

    size: int
    """Numbers that share a scale, in the order of the flat weight."""
    shape: tuple[int, ...]
    nested_size: int = 0
    """Scales that share one of their own; 0: they are not quantized."""
    nested_offset: float = 0.0
    """What is added to the scales that are."""


class FourBitFormat(StoredFormat):
    """Two codes in a byte, the first in the upper half.

    `kind`: nf4 or fp4. `nested`: scales are quantized as well.
    """

    grouping = Grouping(4, USUAL_BLOCK, is_float=True, has_table=True, runs_on=True)

    def __init__(self, kind: str, *, nested: bool) -> None:
        self._nested = nested
        self._state = STATE + kind
        second = (NESTED_SCALES, NESTED_TABLE) if nested else ()
        self.suffixes = ("weight", SCALES, TABLE, self._state, *second)
        self.stored_bits = 4.127 if nested else 4.5

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> ScaledFloats:
        """Return the rank's part."""
        sizes = (part.out_features, part.in_features)
        blocks = _blocks(tensors[self._state])
        if blocks.shape != sizes or bool(blocks.nested_size) != self._nested:
            raise ModelError(
                f"is of shape {list(blocks.shape)}, its scales "
                f"{'' if blocks.nested_size else 'not '}quantized; the model's "
                f"config says {list(sizes)}, and bnb_4bit_use_double_quant {self._nested}."
            )
        group, which = blocks_of(part, blocks.size)
        table = _table(tensors, TABLE, CODES)
        scales = self._scales(tensors, blocks, which)
        return ScaledFloats(
            numbers_of(part, _reader(tensors["weight"], sizes)), scales, group, table
        )

    def _scales(
        self, tensors: Mapping[str, torch.Tensor], blocks: Blocks, which: torch.Tensor
    ) -> torch.Tensor:
        """Return float32 scales of these blocks."""
        found = tensors[SCALES].flatten()
        count = -(-blocks.shape[0] * blocks.shape[1] // blocks.size)
        if len(found) != count:
            raise ModelError(
                f"has {len(found)} scales of blocks of {blocks.size}; there are {count} blocks."
            )
        if not self._nested:
            return found[which].float()
        second = tensors[NESTED_SCALES].flatten().float()
        table = _table(tensors, NESTED_TABLE, 256)
        if found.dtype != torch.uint8 or len(second) != -(-count // blocks.nested_size):
            raise ModelError(
                f"has {len(second)} scales of its {count} scales, which share one by "
                f"{blocks.nested_size}."
            )
        return (
            table[found[which].int()] * second[which // blocks.nested_size] + blocks.nested_offset
        )


class EightBitFormat(IntsFormat):
    """Rows of int8, and how large the largest number of each is."""

    def __init__(self) -> None:
        super().__init__(8, Shared(1, WHOLE), scale="SCB", optional="weight_format")

    def check_optional(self, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Refuse orders that older versions of the library made for one kind of GPU."""
        if suffix == "weight_format" and bool(tensor.any()):
            raise ModelError(
                "says that rows are in an order for one kind of GPU; save the model with a newer "
                "version."
            )

    def scales(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what one step of an integer is."""
        return tensor.float() / LARGEST


def _reader(packed: torch.Tensor, sizes: tuple[int, int]) -> Callable[[int, int], torch.Tensor]:
    """Return what reads codes from one place to another; bytes may be stored as numbers of another
    type.
    """
    total = sizes[0] * sizes[1]
    stored = packed.contiguous().flatten().view(torch.uint8)
    if len(stored) != -(-total // 2):
        raise ModelError(
            f"has {len(stored)} bytes; [{sizes[0]}, {sizes[1]}] of four bits are {-(-total // 2)}."
        )

    def read(first: int, last: int) -> torch.Tensor:
        own = stored[first // 2 : -(-last // 2)]
        return torch.stack((own >> 4, own & 15), -1).flatten()[first % 2 :][: last - first]

    return read


def _blocks(stated: torch.Tensor) -> Blocks:
    """Return what a tensor of JSON says. Raises `ModelError` for one that says nothing of use."""
    try:
        facts: Mapping[str, Any] = json.loads(
            bytes(stated.contiguous().view(torch.uint8).flatten().tolist())
        )
        nested = int(facts.get("nested_blocksize") or 0)
        blocks = Blocks(
            int(facts["blocksize"]),
            tuple(facts["shape"]),
            nested,
            float(facts.get("nested_offset") or 0.0),
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ModelError(
            f"has a state that is not bitsandbytes' ({error!r:.80}); download the file again."
        ) from error
    if not 0 < blocks.size <= 1 << 20 or not 0 <= blocks.nested_size <= 1 << 20:
        raise ModelError(
            f"has blocks of {blocks.size} numbers and {blocks.nested_size} scales; download the "
            "file again."
        )
    return blocks


def _table(tensors: Mapping[str, torch.Tensor], name: str, count: int) -> torch.Tensor:
    table = tensors[name].flatten().float()
    if len(table) != count:
        raise ModelError(f"has a {name} of {len(table)} numbers; there are {count} codes.")
    return table
