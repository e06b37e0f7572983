"""Plain checkpoints are quantized on load like by the library, on one and two ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

functional = pytest.importorskip("bitsandbytes.functional")
sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_bitsandbytes.method import make_method  # noqa: E402 - after the check for the library

from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes  # noqa: E402
from tests.builtin_plugins.quant_methods.writers.bitsandbytes import config  # noqa: E402
from tests.builtin_plugins.quant_methods.writers.model import (  # noqa: E402
    Tensors,
    assert_close,
    logprobs,
    logprobs_tp2,
    plain_tensors,
    quantize,
)


def method(kind: str, stated: Any = None) -> Any:
    return make_method(stated, SimpleNamespace(options={"bitsandbytes_type": kind}))  # type: ignore[arg-type]


def library_writer(kind: str, weight: torch.Tensor) -> torch.Tensor:
    if kind == "int8":
        codes, furthest, _ = functional.int8_vectorwise_quant(weight.half())
        return functional.int8_vectorwise_dequant(codes, furthest).float()
    codes, state = functional.quantize_4bit(weight, quant_type=kind)
    # Its CPU kernel loses blocks that end in another row
    state.shape = torch.Size([weight.numel() // 64, 64])
    return functional.dequantize_4bit(codes, state).float().view(weight.shape)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_plain_checkpoint_matches_library_quantization(
    architecture: str, kind: str, tmp_path: Path
) -> None:
    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        return {"weight": weight}, library_writer(kind, weight)

    sizes = (
        {"intermediate_size": 128, "moe_intermediate_size": 64}
        if "Moe" in architecture
        else {"intermediate_size": 128}
    )
    stored, plain = quantize(plain_tensors(architecture, tmp_path, **sizes), write)
    expected = logprobs(architecture, tmp_path, plain)
    assert_close(logprobs(architecture, tmp_path, stored, method(kind)), expected)
    assert_close(logprobs_tp2(architecture, tmp_path, stored, lambda: method(kind)), expected)
    assert not torch.equal(expected, logprobs(architecture, tmp_path, stored))


def test_bitsandbytes_checkpoint_is_read_by_builtin_method() -> None:
    assert isinstance(method("nf4", config()), BitsAndBytes)
