"""Models quantized by llm-compressor and torchao match transformers' dequantized model.

In float32 all argmax tokens are equal. In bfloat16 transformers' model is further from its float32
result than ours, and so are weights that llm-compressor dequantizes in bfloat16: an argmax token
may change by rounding after the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.cpu_packed.method import make_method
from builtin_plugins.quant_methods.torchao.method import TorchAo
from core.model_spec.quant_method import QuantMethod
from tests.builtin_plugins.quant_methods.writers import (
    compressed_tensors as compressed_tensors_writers,
)
from tests.builtin_plugins.quant_methods.writers import torchao as torchao_writers
from tests.builtin_plugins.quant_methods.writers.model import (
    IDS,
    Tensors,
    Writer,
    assert_close,
    logprobs,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"
WIDE = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
Made = Callable[[], tuple[Writer, QuantMethod]]


def w4a16() -> tuple[Writer, QuantMethod]:
    facts = compressed_tensors_writers.weights(4, type="int", strategy="group", group_size=128)
    library = compressed_tensors_writers.library_writer("pack-quantized", facts)
    from compressed_tensors.compressors.pack_quantized.helpers import (
        unpack_from_int32,
    )

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored, _ = library(weight)  # the library multiplies in bfloat16
        codes = unpack_from_int32(stored["weight_packed"], 4, weight.shape)
        return stored, codes.float() * stored["weight_scale"].float()

    return write, CompressedTensors(compressed_tensors_writers.config("pack-quantized", facts))


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

    return write, TorchAo(torchao_writers.config(config_to_dict(facts)))


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
def test_argmax_tokens_match_transformers_in_float32(made: Made, tmp_path: Path) -> None:
    write, quant = made()
    tensors = {
        name: tensor.bfloat16() for name, tensor in plain_tensors(LLAMA, tmp_path, **WIDE).items()
    }
    stored, plain = quantize(tensors, lambda weight: write(weight.bfloat16()))
    expected = by_transformers(tmp_path, plain, torch.float32)
    for keeps in (None, make_method()):
        found = logprobs(LLAMA, tmp_path, stored, quant, plain=keeps)
        assert_close(found, expected)
        assert torch.equal(found.argmax(-1), expected.argmax(-1))
        rounded = by_transformers(tmp_path, plain, torch.bfloat16)
        assert (rounded - expected).abs().max() > 20 * (found - expected).abs().max()
