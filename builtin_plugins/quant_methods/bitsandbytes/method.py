"""bitsandbytes checkpoints: codebook indices in flat blocks with one absmax each, or int8 rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.common.module_names import NameList, read_transformers_name
from builtin_plugins.quant_methods.common.scales import ALL, GroupShape, block_index, read_shard
from builtin_plugins.quant_methods.stored.config_fields import read_names
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import LayoutSpec, ScaledFloats
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard

KINDS: Final = ("nf4", "fp4")


class BitsAndBytes(ExcludeListMethod):
    """Checkpoints that transformers saved of a model loaded in 4 or 8 bits."""

    name = "bitsandbytes"
    hint = (
        "To quantize a plain checkpoint while it loads, `pip install plugins/engine-bitsandbytes` "
        "in a checkout of the engine, or use int8 or int4."
    )
    example_config: Final = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "llm_int8_skip_modules": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config,
            NameList(
                read_names(config or {}, "llm_int8_skip_modules"),
                read_transformers_name,
                anywhere=True,
            ),
        )
        kind = config.get("bnb_4bit_quant_type", "fp4")
        four, eight = (
            bool(config.get(f"load_in_{bits}bit") or config.get(f"_load_in_{bits}bit"))
            for bits in (4, 8)
        )
        if four == eight or (four and kind not in KINDS):
            raise ModelError(
                f"quantization_config: got load_in_4bit={four}, load_in_8bit={eight}, "
                f"bnb_4bit_quant_type={kind!r:.80}; expected exactly one of both, and for 4 bits a "
                f"type of {', '.join(KINDS)}. Restore the original config."
            )
        self._format: StoredFormat
        if four:
            self._format = FourBitFormat(kind, nested=bool(config.get("bnb_4bit_use_double_quant")))
        else:
            self._format = EightBitFormat()
        self._stated = config.get("llm_int8_skip_modules")

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format; the head is plain unless the config lists skipped modules."""
        return None if self._stated is None else self.choose_format(prefix)


CODEBOOK_SIZE: Final = 16
DEFAULT_BLOCK_SIZE: Final = 64
"""Four-bit numbers per scale, assumed until the first weight is read."""
INT8_MAX: Final = 127
"""The code of the largest number of an int8 row."""
STATE: Final = "weight.quant_state.bitsandbytes__"
SCALES: Final = "weight.absmax"
CODEBOOK: Final = "weight.quant_map"
NESTED_SCALES: Final = "weight.nested_absmax"
NESTED_CODEBOOK: Final = "weight.nested_quant_map"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Contents of the JSON tensor stored with a weight."""

    size: int
    """Numbers per scale, in the order of the flat weight."""
    shape: tuple[int, ...]
    nested_size: int = 0
    """Scales per second-level scale; 0: scales are not quantized."""
    nested_offset: float = 0.0
    """Offset added to quantized scales."""


class FourBitFormat(StoredFormat):
    """Two codes per byte, the first in the upper half.

    `kind`: nf4 or fp4. `nested`: scales are quantized as well.
    """

    layout_spec = LayoutSpec(
        4, DEFAULT_BLOCK_SIZE, is_float=True, has_codebook=True, spans_rows=True
    )

    def __init__(self, kind: str, *, nested: bool) -> None:
        self._nested = nested
        self._state = STATE + kind
        second = (NESTED_SCALES, NESTED_CODEBOOK) if nested else ()
        self.suffixes = ("weight", SCALES, CODEBOOK, self._state, *second)
        self.bits_per_weight = 4.127 if nested else 4.5

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> ScaledFloats:
        """Return this rank's shard."""
        sizes = (shard.out_features, shard.in_features)
        blocks = _blocks(tensors[self._state])
        if blocks.shape != sizes or bool(blocks.nested_size) != self._nested:
            raise ModelError(
                f"has shape {list(blocks.shape)} and {'' if blocks.nested_size else 'un'}quantized "
                f"scales; expected shape {list(sizes)} and "
                f"bnb_4bit_use_double_quant={self._nested}."
            )
        group, which = block_index(shard, blocks.size)
        codebook = _codebook(tensors, CODEBOOK, CODEBOOK_SIZE)
        scales = self._scales(tensors, blocks, which)
        return ScaledFloats(
            read_shard(shard, _reader(tensors["weight"], sizes)), scales, group, codebook
        )

    def _scales(
        self, tensors: Mapping[str, torch.Tensor], blocks: Blocks, which: torch.Tensor
    ) -> torch.Tensor:
        """Return the float32 scales of these blocks."""
        found = tensors[SCALES].flatten()
        count = -(-blocks.shape[0] * blocks.shape[1] // blocks.size)
        if len(found) != count:
            raise ModelError(
                f"has {len(found)} scales for blocks of {blocks.size}; expected {count}."
            )
        if not self._nested:
            return found[which].float()
        second = tensors[NESTED_SCALES].flatten().float()
        codebook = _codebook(tensors, NESTED_CODEBOOK, 256)
        if found.dtype != torch.uint8 or len(second) != -(-count // blocks.nested_size):
            raise ModelError(
                f"has {len(second)} second-level scales for {count} scales; expected one per "
                f"{blocks.nested_size}."
            )
        return (
            codebook[found[which].int()] * second[which // blocks.nested_size]
            + blocks.nested_offset
        )


class EightBitFormat(IntsFormat):
    """int8 rows, with the absolute maximum of each row."""

    def __init__(self) -> None:
        super().__init__(8, GroupShape(1, ALL), scale="SCB", optional="weight_format")

    def check_optional(self, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Reject the GPU-specific row order of older library versions."""
        if suffix == "weight_format" and bool(tensor.any()):
            raise ModelError(
                "has rows in the order of one GPU type; save the model with a newer version of "
                "bitsandbytes."
            )

    def scales(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the step size of each row."""
        return tensor.float() / INT8_MAX


def _reader(packed: torch.Tensor, sizes: tuple[int, int]) -> Callable[[int, int], torch.Tensor]:
    """Return a function that reads a range of codes. The bytes may be stored as another dtype."""
    total = sizes[0] * sizes[1]
    stored = packed.contiguous().flatten().view(torch.uint8)
    if len(stored) != -(-total // 2):
        raise ModelError(
            f"has {len(stored)} bytes; expected {-(-total // 2)} for [{sizes[0]}, {sizes[1]}] "
            "four-bit codes."
        )

    def read(first: int, last: int) -> torch.Tensor:
        own = stored[first // 2 : -(-last // 2)]
        return torch.stack((own >> 4, own & 15), -1).flatten()[first % 2 :][: last - first]

    return read


def _blocks(stated: torch.Tensor) -> Blocks:
    """Return the contents of a JSON tensor. Raises `ModelError` if it is invalid."""
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
            f"has an invalid bitsandbytes quant_state ({error!r:.80}); download the file again."
        ) from error
    if not 0 < blocks.size <= 1 << 20 or not 0 <= blocks.nested_size <= 1 << 20:
        raise ModelError(
            f"has blocks of {blocks.size} numbers and {blocks.nested_size} scales; expected sizes "
            "up to 2**20. Download the file again."
        )
    return blocks


def _codebook(tensors: Mapping[str, torch.Tensor], name: str, count: int) -> torch.Tensor:
    codebook = tensors[name].flatten().float()
    if len(codebook) != count:
        raise ModelError(f"has a {name} of {len(codebook)} numbers; expected {count}.")
    return codebook
