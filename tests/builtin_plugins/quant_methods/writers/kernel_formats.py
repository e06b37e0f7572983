"""Formats that the kernels multiply without dequantizing, with their writers."""

from __future__ import annotations

from typing import Any

import torch

from builtin_plugins.quant_methods.awq.method import Awq
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.gptq.method import Gptq
from builtin_plugins.quant_methods.hqq.method import Hqq
from builtin_plugins.quant_methods.torchao.method import TorchAo
from tests.builtin_plugins.quant_methods.writers import awq as awq_writers
from tests.builtin_plugins.quant_methods.writers import bitsandbytes as bitsandbytes_writers
from tests.builtin_plugins.quant_methods.writers import (
    compressed_tensors as compressed_tensors_writers,
)
from tests.builtin_plugins.quant_methods.writers import float_formats as float_formats_writers
from tests.builtin_plugins.quant_methods.writers import gptq as gptq_writers
from tests.builtin_plugins.quant_methods.writers import hqq as hqq_writers
from tests.builtin_plugins.quant_methods.writers import torchao as torchao_writers
from tests.builtin_plugins.quant_methods.writers.model import (
    Writer,
)

LLAMA = "LlamaForCausalLM"


ROWS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


def in_rows(weight: torch.Tensor) -> Any:
    scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().float()
    codes = (weight / scales).round().clamp(-128, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def gptq_case(
    bits: int, group: int, *, sym: bool = True, order: bool = False
) -> tuple[Writer, Any]:
    settings = gptq_writers.config(bits, group, sym=sym, order=order)
    return gptq_writers.writer(bits, group, sym=sym, order=order), lambda: Gptq(settings)


def bits_and_bytes_case(kind: str) -> tuple[Writer, Any]:
    """In rows of 96 inputs, blocks of 64 end inside rows: those are dequantized."""
    return bitsandbytes_writers.writer(kind, nested=True), lambda: BitsAndBytes(
        bitsandbytes_writers.config(kind, nested=True)
    )


def hqq_case(bits: int) -> tuple[Writer, Any]:
    return hqq_writers.writer(bits), lambda: Hqq(hqq_writers.config(bits))


NIBBLES = torchao_writers.CASES["int4 in nibbles"][1]


CASES: dict[str, tuple[Writer, Any]] = {
    "gptq, 4 bits": gptq_case(4, 16),
    "gptq, 4 bits with order": gptq_case(4, 16, order=True),
    "gptq, 4 bits with zeros": gptq_case(4, 32, sym=False),
    "gptq, 3 bits with zeros": gptq_case(3, 32, sym=False),
    "gptq, 2 bits": gptq_case(2, 16),
    "gptq, 8 bits in rows": gptq_case(8, -1),
    "gptq, 8 bits with zeros": gptq_case(8, 32, sym=False),
    "gptq, 4 bits with zeros and order": gptq_case(4, 16, sym=False, order=True),
    "awq": (awq_writers.writer(16), lambda: Awq(awq_writers.config(16))),
    **{
        f"floats: {name}": float_formats_writers.CASES[name]
        for name in ("fp8 in blocks", "fbgemm_fp8", "modelopt NVFP4")
    },
    **{f"bitsandbytes {kind}": bits_and_bytes_case(kind) for kind in ("nf4", "fp4")},
    **{f"hqq, {bits} bits": hqq_case(bits) for bits in (4, 3, 8)},
    "torchao int4": (
        torchao_writers.CASES["int4 in nibbles"][0],
        lambda: TorchAo(torchao_writers.config(NIBBLES)),
    ),
    "int8 in rows": (
        in_rows,
        lambda: CompressedTensors(compressed_tensors_writers.config("int-quantized", ROWS)),
    ),
}
