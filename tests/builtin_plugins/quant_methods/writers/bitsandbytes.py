"""Writers of bitsandbytes checkpoints for tests: packed here, and by the library."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
)

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


FP4 = [0.0, 0.0052083333, 0.6666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]


TABLES = {"nf4": NF4, "fp4": [*FP4, *(-value for value in FP4)]}


NESTED = 256


def config(kind: str = "nf4", *, nested: bool = False, **more: Any) -> dict[str, Any]:
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    return {"quant_method": "bitsandbytes", **four, "llm_int8_skip_modules": ["lm_head"], **more}


EIGHT = {
    "quant_method": "bitsandbytes",
    "load_in_8bit": True,
    "load_in_4bit": False,
    "llm_int8_skip_modules": None,
}


def writer(
    kind: str = "nf4", *, nested: bool = False, block: int = 64, storage: torch.dtype = torch.uint8
) -> Writer:
    """Flat blocks with their absmax; two codes per byte, the first in the upper half."""
    table = torch.tensor(TABLES[kind])

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % block)).view(
            -1, block
        )
        furthest = flat.abs().amax(1)
        stored = {}
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32"}
        state["shape"] = list(weight.shape)
        absmax = furthest
        if nested:
            mean = float(furthest.mean())
            second = torch.linspace(-1, 1, 256)
            blocks = torch.nn.functional.pad(furthest - mean, (0, -len(furthest) % NESTED)).view(
                -1, NESTED
            )
            largest = blocks.abs().amax(1)
            codes = (blocks / largest[:, None]).unsqueeze(-1).sub(second).abs().argmin(-1)
            furthest = (second[codes] * largest[:, None]).flatten()[: len(furthest)] + mean
            absmax = codes.flatten()[: len(furthest)].to(torch.uint8)
            state |= {"nested_blocksize": NESTED, "nested_offset": mean, "nested_dtype": "float32"}
            stored = {"weight.nested_absmax": largest, "weight.nested_quant_map": second}
        codes = (flat / furthest[:, None]).unsqueeze(-1).sub(table).abs().argmin(-1)
        plain = (table[codes] * furthest[:, None]).flatten()[: weight.numel()].view(weight.shape)
        codes = codes.flatten()[: weight.numel()]
        stored["weight"] = (
            (codes[0::2] << 4 | codes[1::2]).to(torch.uint8).view(storage).unsqueeze(1)
        )
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        stored |= {"weight.absmax": absmax, "weight.quant_map": table}
        return {**stored, f"weight.quant_state.bitsandbytes__{kind}": text}, plain

    return write


def eight_bits(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    furthest = weight.abs().amax(1)
    codes = (weight * (127 / furthest[:, None])).round().to(torch.int8)
    stored = {"weight": codes, "SCB": furthest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, codes.float() * furthest[:, None] / 127


def library_writer(kind: str, nested: bool) -> Writer:
    functional = pytest.importorskip("bitsandbytes.functional")

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        if kind == "int8":
            codes, furthest, _ = functional.int8_vectorwise_quant(weight.half())
            plain = functional.int8_vectorwise_dequant(codes, furthest).float()
            return {
                "weight": codes,
                "SCB": furthest,
                "weight_format": torch.tensor(0, dtype=torch.uint8),
            }, plain
        codes, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
        stored = {
            "weight": codes,
            **{f"weight.{name}": own for name, own in state.as_dict(packed=True).items()},
        }
        # Its CPU kernel loses blocks that end in another row
        state.shape = torch.Size([weight.numel() // 64, 64])
        return stored, functional.dequantize_4bit(codes, state).float().view(weight.shape)

    return write


CASES: dict[str, tuple[Writer, dict[str, Any]]] = {
    "nf4": (writer(), config()),
    "nf4, scales quantized too": (writer(nested=True), config(nested=True)),
    "fp4": (writer("fp4"), config("fp4")),
    "nf4 in blocks of a row": (writer(block=32), config()),
    "nf4 in blocks of two rows": (writer(block=128), config()),
    "nf4 named bfloat16": (
        writer(storage=torch.bfloat16),
        config(bnb_4bit_quant_storage="bfloat16"),
    ),
    "int8": (eight_bits, EIGHT),
}
