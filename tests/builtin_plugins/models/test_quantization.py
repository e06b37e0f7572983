"""Choice of the quantization method from checkpoint files and flags, and rejected choices."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core_kernels.library import load_library
from safetensors.torch import load_file, save_file

from builtin_plugins.commands.api import memory_plan
from core import LLM, SamplingParams
from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.config.sections import ModelConfig
from core.errors import ModelError
from core.models.layers.quantization import quant_method
from core.plugin import load_plan, make_plan
from core.plugin.registry import Registry
from tests.builtin_plugins.quant_methods.writers.gptq import writer
from tests.builtin_plugins.quant_methods.writers.model import quantize

PLUGIN = '''
"""Methods of a test: one that gets both configs, and one that reads another's checkpoints."""

from core.api import Entry, hookimpl
from core.models.layers.linear import PlainWeights


class Both(PlainWeights):
    name = "both"

    def __init__(self, quantization, config):
        self.seen = quantization, config.model.dtype


class Also(PlainWeights):
    name = "also"
    reads = ("awq",)


@hookimpl
def engine_quant_methods():
    return [Entry("both", Both, "gets both configs"), Entry("also", Also, "reads awq as well")]
'''


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("LlamaForCausalLM"), tmp_path / "model"))


@pytest.fixture(scope="module")
def with_methods(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    file = tmp_path_factory.mktemp("plugin") / "methods.py"
    file.write_text(PLUGIN)
    return load_plan(make_plan([f"+{file}"]))


def method_for(
    folder: Path, registry: Registry, stated: dict[str, Any] | None = None, **model: Any
) -> Any:
    if stated is not None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": stated}))
    config = EngineConfig(ModelConfig(str(folder), **model))
    source = registry.find_model(str(folder), config)
    assert source is not None
    return quant_method(config, source, registry)


def test_quantization_flag_is_rejected_for_unquantized_checkpoint(
    folder: Path, registry: Registry
) -> None:
    with pytest.raises(ModelError, match="--quantization mxfp4 loads MXFP4 checkpoints"):
        method_for(folder, registry, quantization="mxfp4")


@pytest.mark.parametrize("requested", ["none", "mxfp4", "gptq_marlin"])
def test_quantization_flag_must_match_checkpoint(
    folder: Path, registry: Registry, requested: str
) -> None:
    with pytest.raises(
        ModelError,
        match=f"--quantization {requested} does not read this checkpoint.* stored as 'awq'",
    ):
        method_for(folder, registry, {"quant_method": "awq", "bits": 4}, quantization=requested)


@pytest.mark.parametrize(
    "requested", ["awq", "gptq_marlin", "quark", "hqq", "int4", "experts_int8", "fp8"]
)
def test_quantization_flag_without_its_config_is_rejected(
    folder: Path, registry: Registry, requested: str
) -> None:
    stated = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}
    message = (
        f"--quantization {requested} does not read this checkpoint.* stored as 'compressed-tensors'"
    )
    with pytest.raises(ModelError, match=message):
        method_for(folder, registry, stated, quantization=requested)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}


@pytest.mark.parametrize(
    ("requested", "stated"),
    [
        *((name, AWQ) for name in ("awq_marlin", "cpu_wna16", "ipex_quant")),
        *(
            (name, GPTQ)
            for name in ("gptq_marlin", "moe_wna16", "gptq", "bitblas", "gptq_marlin_24", "ipex")
        ),
    ],
)
def test_alias_of_checkpoint_quantization_is_accepted(
    folder: Path, registry: Registry, requested: str, stated: dict[str, Any]
) -> None:
    assert (
        method_for(folder, registry, stated, quantization=requested).name == stated["quant_method"]
    )


NAMES = """
awq deepspeedfp tpu_int8 fp8 ptpc_fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 bitblas
gptq_marlin_24 gptq_marlin gptq_bitblas awq_marlin gptq compressed-tensors bitsandbytes hqq
experts_int8 ipex quark moe_wna16 torchao auto-round rtn inc mxfp4 petit_nvfp4 cpu_gptq cpu_awq
"""
"""vLLM's quantization methods but `gguf`, which is a separate plugin."""


def test_quantization_aliases_of_other_engines_are_accepted(registry: Registry) -> None:
    entries = [registered.entry for registered in registry.entries("quant_methods")]
    assert (
        set(NAMES.split()) - {name for entry in entries for name in (entry.name, *entry.gives)}
        == set()
    )


def test_kernel_specific_weight_layout_is_rejected(folder: Path, registry: Registry) -> None:
    for name, reason in (
        ("gptq_marlin_24", "weights are 2:4 sparse"),
        ("bitblas", "tuned for each GPU"),
    ):
        with pytest.raises(ModelError, match=reason):
            method_for(folder, registry, {**GPTQ, "quant_method": name})


@pytest.mark.parametrize(
    "requested", ["gptq", "gptq_marlin", "moe_wna16", "cpu_wna16", "modelopt_fp4", "inc"]
)
def test_stored_format_name_is_rejected_without_stored_weights(
    folder: Path, registry: Registry, requested: str
) -> None:
    with pytest.raises(ModelError, match=f"--quantization {requested} loads checkpoints") as caught:
        method_for(folder, registry, quantization=requested)
    assert str(caught.value).count("--quantization") == 2, "the other one is to be left out"


def test_unknown_quantization_method_is_reported(folder: Path, registry: Registry) -> None:
    with pytest.raises(
        ModelError,
        match="the checkpoint names the quantization method 'eetq', which no loaded plugin has",
    ):
        method_for(folder, registry, {"quant_method": "eetq"})


def test_quantization_method_may_read_other_formats(folder: Path, with_methods: Registry) -> None:
    assert (
        method_for(folder, with_methods, {"quant_method": "awq"}, quantization="also").name
        == "also"
    )


def test_quantization_method_gets_checkpoint_and_engine_config(
    folder: Path, with_methods: Registry
) -> None:
    stated = {"quant_method": "both", "bits": 3}
    assert method_for(folder, with_methods, stated, dtype="bfloat16").seen == (stated, "bfloat16")


@pytest.mark.parametrize(
    ("file", "facts", "method"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "awq"),
        (
            "hf_quant_config.json",
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
            "modelopt",
        ),
    ],
)
def test_side_files_name_the_quantization_method(
    folder: Path, registry: Registry, file: str, facts: dict[str, Any], method: str
) -> None:
    (folder / file).write_text(json.dumps(facts))
    assert method_for(folder, registry).name == method
    source = registry.find_model(str(folder), EngineConfig(ModelConfig(str(folder))))
    assert source is not None
    inner = facts.get("quantization", facts)
    assert source.hf_config.quantization_config == {"quant_method": method, **inner}
    overridden = method_for(folder, registry, hf_overrides={"quantization_config": None})
    assert overridden.linear("a").suffixes == ("weight",)


@pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")
def test_integer_checkpoint_is_planned_and_served_at_stored_size(
    folder: Path, registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(folder / "model.safetensors")
    stored, plain = quantize(
        {name: tensor.float() for name, tensor in tensors.items()}, writer(4, 32)
    )
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    other = Path(shutil.copytree(folder, tmp_path / "plain"))
    save_file(plain, other / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    path.write_text(
        json.dumps({**settings, "quantization_config": {**GPTQ, "sym": True, "desc_act": False}})
    )

    def planned(model: Path) -> int:
        given = {"model": str(model), "dtype": "bfloat16", "max_model_len": 64}
        return sum(
            memory_plan(config_from_kwargs(given, registry.options()), registry).weight_bytes
        )

    assert planned(folder) < planned(other)

    def first(model: Path) -> dict[int, float]:
        with LLM(
            str(model), dtype="float32", max_model_len=64, num_threads=1, log_level="warning"
        ) as llm:
            params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
            scores = llm.generate([[5, 9, 30, 7]], params, use_tqdm=False)[0].outputs[0].logprobs
            assert scores is not None
            return {token: entry.logprob for token, entry in scores[0].items()}

    found = first(folder)
    assert "no kernel of this device" not in caplog.text
    assert found == pytest.approx(first(other), abs=0.02)
