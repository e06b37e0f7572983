"""Whole models as llm-compressor and torchao round them, stored in bfloat16 else, beside
transformers' model of the same numbers.

In float32 both give the same best tokens everywhere. In bfloat16 transformers' model is further
from itself in float32 than ours is, and so are the weights that llm-compressor's library makes
plain in bfloat16: a best token may change by what is rounded after the checkpoint, not by what is
stored.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.packed.method import make_method
from builtin_plugins.quant_methods.torchao.method import TorchAo
from core.contracts import QuantMethod
from tests.quant_methods import test_compressed_tensors, test_torchao
from tests.quant_methods.stored import (
    IDS,
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    packed,
    scores,
)

LLAMA = "LlamaForCausalLM"
WIDE = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
Made = Callable[[], tuple[Writer, QuantMethod]]


def w4a16() -> tuple[Writer, QuantMethod]:
    facts = test_compressed_tensors.weights(4, type="int", strategy="group", group_size=128)
    library = test_compressed_tensors.by_the_library("pack-quantized", facts)
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored, _ = library(weight)  # which multiplies numbers and scales in bfloat16
        codes = unpack_from_int32(stored["weight_packed"], 4, weight.shape)
        return stored, codes.float() * stored["weight_scale"].float()

    return write, CompressedTensors(test_compressed_tensors.config("pack-quantized", facts))


def int8() -> tuple[Writer, QuantMethod]:
    ao = pytest.importorskip("torchao.quantization")
    from torchao.core.config import config_to_dict

    facts = ao.Int8WeightOnlyConfig()

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        module = torch.nn.Sequential(torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False))
        module[0].weight.data = weight
        ao.quantize_(module, facts)
        own: Any = module[0].weight
        plain = own.qdata.float() * own.scale.float()
        zeros = (
            own.zero_point
            if own.zero_point is not None
            else torch.zeros_like(own.scale, dtype=torch.int8)
        )
        return {
            "_weight_qdata": own.qdata,
            "_weight_scale": own.scale,
            "_weight_zero_point": zeros,
        }, plain

    return write, TorchAo(test_torchao.config(config_to_dict(facts)))


@torch.inference_mode()
def by_transformers(folder: Path, plain: Tensors, dtype: torch.dtype) -> torch.Tensor:
    config = transformers.AutoConfig.from_pretrained(folder)
    model: Any = transformers.LlamaForCausalLM._from_config(
        config, attn_implementation="eager", dtype=dtype
    ).eval()
    report = model.load_state_dict(plain, strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    found: torch.Tensor = model(torch.tensor([IDS])).logits[0].float().log_softmax(-1)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", [w4a16, int8], ids=["llm-compressor W4A16", "torchao int8"])
def test_in_float32_every_best_token_is_the_same(made: Made, tmp_path: Path) -> None:
    write, quant = made()
    tensors = {
        name: tensor.bfloat16() for name, tensor in checkpoint(LLAMA, tmp_path, **WIDE).items()
    }
    stored, plain = packed(tensors, lambda weight: write(weight.bfloat16()))
    expected = by_transformers(tmp_path, plain, torch.float32)
    for keeps in (None, make_method()):
        found = scores(LLAMA, tmp_path, stored, quant, plain=keeps)
        assert_alike(found, expected)
        assert torch.equal(found.argmax(-1), expected.argmax(-1))
        rounded = by_transformers(tmp_path, plain, torch.bfloat16)
        assert (rounded - expected).abs().max() > 20 * (found - expected).abs().max()
