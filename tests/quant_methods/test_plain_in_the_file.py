"""Weights that a checkpoint has plain, and whose config says nothing of it, are plain."""

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
from builtin_plugins.quant_methods.packed.method import make_method
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from core import LLM, SamplingParams
from core.config.build import config_from_kwargs
from core.errors import ModelError
from core.plugin import load_plan, make_plan
from tests.quant_methods import test_bitsandbytes, test_compressed_tensors, test_torchao
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    packed,
    scores,
)

Case = tuple[Writer, Callable[[], StoredMethod]]
NAMED: dict[str, Callable[[], Case]] = {
    "torchao": lambda: (
        test_torchao.CASES["int8 in rows"][0],
        lambda: TorchAo(test_torchao.config(test_torchao.CASES["int8 in rows"][1])),
    ),
    "bitsandbytes": lambda: (
        test_bitsandbytes.CASES["int8"][0],
        lambda: BitsAndBytes(test_bitsandbytes.CASES["int8"][1]),
    ),
    "compressed-tensors": lambda: (
        test_compressed_tensors.by_the_library(*test_compressed_tensors.SCHEMES["fp8 in rows"]),
        lambda: CompressedTensors(
            test_compressed_tensors.config(*test_compressed_tensors.SCHEMES["fp8 in rows"])
        ),
    ),
}


def outside(name: str) -> bool:
    """Say whether it is the weight of a linear layer that is no expert's: what tools see that look
    for such layers.
    """
    return is_linear(name) and ".experts." not in name


def types_of(tensors: Tensors) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_experts_that_a_tool_passed_over_are_plain(
    architecture: str, name: str, tmp_path: Path
) -> None:
    write, make = NAMED[name]()
    stored, plain = packed(checkpoint(architecture, tmp_path), write, outside)
    expected = scores(architecture, tmp_path, plain)
    for keeps in (None, make_method()):
        quant = make()
        quant.stored_as(types_of(stored))
        assert_alike(scores(architecture, tmp_path, stored, quant, plain=keeps), expected)


def test_a_weight_with_some_of_its_tensors_is_not_plain(tmp_path: Path) -> None:
    write, make = NAMED["compressed-tensors"]()
    stored, _ = packed(checkpoint("LlamaForCausalLM", tmp_path), write)
    stored["model.layers.0.mlp.up_proj.weight"] = stored[
        "model.layers.0.mlp.up_proj.weight"
    ].float()
    quant = make()
    quant.stored_as(types_of(stored))
    with pytest.raises(
        ModelError, match="has a weight of float32, which is none of eight-bit floats"
    ):
        scores("LlamaForCausalLM", tmp_path, stored, quant)


def test_a_start_looks_at_the_file(tmp_path: Path) -> None:
    write, facts = test_torchao.CASES["int8 in rows"]
    folder = tmp_path / "stored"
    stored, plain = packed(checkpoint("MixtralForCausalLM", folder), write, outside)
    other = Path(shutil.copytree(folder, tmp_path / "plain"))
    save_file(plain, other / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(
        json.dumps(
            {**json.loads(path.read_text()), "quantization_config": test_torchao.config(facts)}
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
