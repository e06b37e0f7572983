"""Weights that are plain in a quantized checkpoint stay plain, whatever its config says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from builtin_plugins.commands.plan.memory_plan import memory_plan
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.cpu_packed.method import make_method
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from core import LLM, SamplingParams
from core.config.build import config_from_kwargs
from core.errors import ModelError
from core.plugin import load_plan, make_plan
from tests.builtin_plugins.quant_methods.writers import bitsandbytes as bitsandbytes_writers
from tests.builtin_plugins.quant_methods.writers import (
    compressed_tensors as compressed_tensors_writers,
)
from tests.builtin_plugins.quant_methods.writers import torchao as torchao_writers
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    Writer,
    assert_close,
    is_linear,
    logprobs,
    plain_tensors,
    quantize,
)

Case = tuple[Writer, Callable[[], StoredMethod]]
NAMED: dict[str, Callable[[], Case]] = {
    "torchao": lambda: (
        torchao_writers.CASES["int8 in rows"][0],
        lambda: TorchAo(torchao_writers.config(torchao_writers.CASES["int8 in rows"][1])),
    ),
    "bitsandbytes": lambda: (
        bitsandbytes_writers.CASES["int8"][0],
        lambda: BitsAndBytes(bitsandbytes_writers.CASES["int8"][1]),
    ),
    "compressed-tensors": lambda: (
        compressed_tensors_writers.library_writer(
            *compressed_tensors_writers.SCHEMES["fp8 in rows"]
        ),
        lambda: CompressedTensors(
            compressed_tensors_writers.config(*compressed_tensors_writers.SCHEMES["fp8 in rows"])
        ),
    ),
}


def outside(name: str) -> bool:
    """Return whether it is a linear weight outside experts, which is what tools quantize."""
    return is_linear(name) and ".experts." not in name


def types_of(tensors: Tensors) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_skipped_experts_are_plain(architecture: str, name: str, tmp_path: Path) -> None:
    write, make = NAMED[name]()
    stored, plain = quantize(plain_tensors(architecture, tmp_path), write, outside)
    expected = logprobs(architecture, tmp_path, plain)
    for keeps in (None, make_method()):
        quant = make()
        quant.set_checkpoint_dtypes(types_of(stored))
        assert_close(logprobs(architecture, tmp_path, stored, quant, plain=keeps), expected)


def test_weight_with_some_quantized_tensors_is_not_plain(tmp_path: Path) -> None:
    write, make = NAMED["compressed-tensors"]()
    stored, _ = quantize(plain_tensors("LlamaForCausalLM", tmp_path), write)
    stored["model.layers.0.mlp.up_proj.weight"] = stored[
        "model.layers.0.mlp.up_proj.weight"
    ].float()
    quant = make()
    quant.set_checkpoint_dtypes(types_of(stored))
    with pytest.raises(ModelError, match="has a weight of float32; expected an FP8 dtype"):
        logprobs("LlamaForCausalLM", tmp_path, stored, quant)


def test_startup_reads_checkpoint_dtypes(tmp_path: Path) -> None:
    write, facts = torchao_writers.CASES["int8 in rows"]
    folder = tmp_path / "stored"
    stored, plain = quantize(plain_tensors("MixtralForCausalLM", folder), write, outside)
    other = Path(shutil.copytree(folder, tmp_path / "plain"))
    save_file(plain, other / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(
        json.dumps(
            {**json.loads(path.read_text()), "quantization_config": torchao_writers.config(facts)}
        )
    )
    registry = load_plan(make_plan([]))
    given = {"model": str(folder), "dtype": "float32", "max_model_len": 64}
    assert memory_plan(config_from_kwargs(given, registry.options()), registry).weight_bytes

    def first(model: Path) -> dict[int, float]:
        settings: dict[str, Any] = {
            "dtype": "float32",
            "max_model_len": 64,
            "num_threads": 1,
            "log_level": "warning",
        }
        with LLM(str(model), **settings) as llm:
            params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
            found = llm.generate([[5, 9, 30, 7]], params, use_tqdm=False)[0].outputs[0].logprobs
            assert found is not None
            return {token: entry.logprob for token, entry in found[0].items()}

    assert first(folder) == pytest.approx(first(other), abs=1e-3)
