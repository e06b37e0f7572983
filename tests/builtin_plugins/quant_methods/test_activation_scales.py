"""Inputs are rounded as the checkpoint specifies, in one place for all formats."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.cpu_packed.method import make_method
from builtin_plugins.quant_methods.fp_quant.method import FpQuant
from builtin_plugins.quant_methods.quark.method import Quark
from builtin_plugins.quant_methods.stored.activations import FLOATS, ActivationScheme
from core import LLM, SamplingParams
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers import compressed_tensors as ct
from tests.builtin_plugins.quant_methods.writers import fp_quant, quark
from tests.builtin_plugins.quant_methods.writers.activations import (
    Simulated,
    cases,
    engine,
    mxfp4,
    static_floats,
    with_activations,
)
from tests.builtin_plugins.quant_methods.writers.model import (
    build_model,
    logprobs,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"
FAST = ("ct int8 per token", "ct nvfp4", "fp8 static")
"""Combinations that the fast suite runs on kernels."""
SIZES = {"hidden_size": 64, "intermediate_size": 128}


def effect(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).abs().mean())


def found_logprobs(
    name: str, folder: Path, mode: str = "on", architecture: str = LLAMA, device: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities of the checkpoint, of its simulation, and of exact inputs."""
    (write, method), extra, simulate = cases()[name]
    stored, plain = quantize(plain_tensors(architecture, folder, **SIZES), write)
    stored = with_activations(stored, extra)
    return (
        logprobs(architecture, folder, stored, method(engine(mode)), plain=device),
        logprobs(architecture, folder, plain, Simulated(simulate)),
        logprobs(architecture, folder, plain),
    )


@pytest.mark.parametrize("name", cases())
def test_rounding_equals_its_simulation(name: str, tmp_path: Path) -> None:
    found, simulated, exact = found_logprobs(name, tmp_path)
    assert effect(found, simulated) < 0.001 * effect(simulated, exact)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in cases()],
)
def test_effect_on_kernels_is_that_of_the_simulation(name: str, tmp_path: Path) -> None:
    """Integer kernels round products otherwise, which may move single numbers."""
    found, simulated, exact = found_logprobs(name, tmp_path, device=make_method())
    assert 0.9 < effect(found, exact) / effect(simulated, exact) < 1.1


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("name", ["ct int8 per token", "ct nvfp4", "fp8 static"])
def test_inputs_are_exact_unless_requested(
    name: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found, simulated, exact = found_logprobs(name, tmp_path, mode)
    assert effect(found, exact) < 0.001 * effect(simulated, exact)
    (line,) = [text for text in caplog.messages if "rounded activations" in text]
    number = {"ct int8 per token": "int8 per token", "ct nvfp4": "fp4 per 16 inputs"}
    assert f"exactly: {number.get(name, 'fp8_e4m3 with static scales')}" in line
    assert line.endswith(f"--activation-quantization is {mode}")


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("name", ["ct fp8 per token", "fp8 static", "ct fp8 in blocks", "ct mxfp4"])
def test_inputs_of_experts_are_rounded(name: str, architecture: str, tmp_path: Path) -> None:
    """Sums in another order move single numbers of fp8 in blocks past a border of rounding."""
    found, simulated, exact = found_logprobs(name, tmp_path, architecture=architecture)
    allowed = 0.003 if name == "ct fp8 in blocks" else 0.001
    assert effect(found, simulated) < allowed * effect(simulated, exact)


def test_fused_layer_uses_the_largest_static_scale(tmp_path: Path) -> None:
    (write, method), _, _ = cases()["fp8 static"]
    stored, plain = quantize(plain_tensors(LLAMA, tmp_path, **SIZES), write)
    scales = {name: 0.05 for name in stored if name.endswith("weight_scale")}
    scales |= {name: 0.02 for name in scales if "k_proj" in name or "up_proj" in name}
    stored |= {
        name.replace("weight_scale", "input_scale"): torch.tensor(scale)
        for name, scale in scales.items()
    }
    found = logprobs(LLAMA, tmp_path, stored, method(engine("on")))
    simulated = logprobs(LLAMA, tmp_path, plain, Simulated(static_floats(0.05)))
    assert effect(found, simulated) < 1e-4


def test_rotated_inputs_are_rounded_after_the_rotation(tmp_path: Path) -> None:
    write, facts = fp_quant.CASES["mxfp4"]
    stored, plain = quantize(plain_tensors(LLAMA, tmp_path, **SIZES), write)
    rotation = next(tensor for name, tensor in stored.items() if "forward_hadamard" in name)

    def simulate(x: torch.Tensor) -> torch.Tensor:
        groups = x.reshape(*x.shape[:-1], -1, len(rotation)) @ rotation.float()
        rounded = mxfp4(groups.flatten(-2)).view(groups.shape)
        return (rounded @ rotation.float().T).flatten(-2)

    found = logprobs(LLAMA, tmp_path, stored, FpQuant(facts, engine("on")))
    simulated = logprobs(LLAMA, tmp_path, plain, Simulated(simulate))
    assert effect(found, simulated) < 0.02 * effect(simulated, logprobs(LLAMA, tmp_path, plain))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (None, "input_scale: got no tensor; expected the static scale of activations"),
        (torch.tensor(0.0), "input_scale: got 0.0; expected a finite number above 0"),
        (torch.tensor(torch.inf), "input_scale: got inf; expected a finite number above 0"),
    ],
)
def test_unusable_static_scale_is_rejected(
    scale: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    (write, method), _, _ = cases()["fp8 static"]
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path, **SIZES), write)
    stored = with_activations(stored, {} if scale is None else {"input_scale": scale})
    with pytest.raises(ModelError, match=message):
        logprobs(LLAMA, tmp_path, stored, method(engine("on")))


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)]
)
def test_floats_round_as_torch_converts(name: str, dtype: torch.dtype) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values
    between = (numbers[1:] + numbers[:-1]) / 2
    spread = torch.logspace(-12, 6, 2000) * torch.randn(2000).sign()
    largest = FLOATS[name].largest
    for x in (numbers, between, spread):
        assert torch.equal(FLOATS[name].round(x), x.clamp(-largest, largest).to(dtype).float())


@pytest.mark.parametrize("number", ["int8", "fp8_e4m3", "fp4"])
@pytest.mark.parametrize("width", [64, 40])
def test_rounding_of_a_row_is_independent_of_others(number: str, width: int) -> None:
    x = torch.randn(7, width, dtype=torch.bfloat16)
    scheme = ActivationScheme(number, 16)
    assert torch.equal(scheme.round(x)[2:3], scheme.round(x[2:3]))
    assert torch.equal(scheme.round(torch.zeros(2, width)), torch.zeros(2, width))


@pytest.mark.parametrize("method", [CompressedTensors, Quark])
def test_unsupported_rounding_is_logged(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    inputs = {"strategy": "attn_head", "dtype": "int16", "num_bits": 8, "dynamic": False}
    settings = {
        CompressedTensors: ct.config(
            "int-quantized", ct.weights(8, type="int", strategy="channel")
        ),
        Quark: quark.config({**quark.CASES["int8 of rows"][1], "input_tensors": inputs}),
    }[method]
    if method is CompressedTensors:
        settings["config_groups"]["group_0"]["input_activations"] = inputs
    stored = method(settings).choose_format("model.layers.0.mlp.down_proj")
    assert stored.activations is None
    assert "expected a scale per tensor, token or group. Inputs are not rounded" in caplog.text


@pytest.mark.parametrize("method", [Quark, CompressedTensors])
def test_unused_output_scales_are_named_once(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    dtypes = {f"model.layers.{i}.mlp.down_proj.output_scale": torch.float32 for i in range(3)}
    method(method.example_config).set_checkpoint_dtypes(dtypes)
    (line,) = caplog.messages
    assert "3 stored scales of outputs (such as model.layers.0.mlp.down_proj.output_scale)" in line


def test_scales_of_cached_keys_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    facts = quark.CASES["fp8 of tensors"][1]
    outputs = {"output_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}
    keys = {name: {**facts, **outputs} for name in ("*k_proj", "*v_proj")}
    method = Quark(quark.config(facts, layer_quant_config=keys))
    method.set_checkpoint_dtypes({"model.layers.0.self_attn.k_proj.output_scale": torch.float32})
    assert not caplog.messages
    assert method.kv_dtype("model.layers.0.self_attn") == "float8_e4m3fn"


@pytest.mark.parametrize("mode", ["on", "off"])
def test_setting_without_effect_is_refused(mode: str, tmp_path: Path) -> None:
    settings = ct.config(*ct.SCHEMES["int4 in groups"])
    plain_tensors(LLAMA, tmp_path)
    method = CompressedTensors(settings, engine(mode))
    build_model(LLAMA, tmp_path, method)
    with pytest.raises(ModelError, match=f"--activation-quantization: got '{mode}'; expected a "):
        method.check_used()
    CompressedTensors(settings, engine("auto")).check_used()


@pytest.mark.parametrize("quantization", [None, "int8", "int4", "experts_int8"])
def test_setting_without_effect_on_plain_weights_is_refused(
    quantization: str | None, tmp_path: Path
) -> None:
    plain_tensors("MixtralForCausalLM", tmp_path)
    name = quantization or "none"
    message = (
        "--activation-quantization: got 'on'; expected a quantization method that reads it, and "
        f"'{name}' does not. Remove it."
    )
    with pytest.raises(ModelError, match=message):
        LLM(str(tmp_path), quantization=quantization, activation_quantization="on")


def test_option_decides_in_an_engine(tmp_path: Path) -> None:
    (write, _), extra, _ = cases()["fp8 static"]
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path, **SIZES), write)
    save_file(with_activations(stored, extra), tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static"}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def found(mode: str) -> list[float]:
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        prompt: Any = {"prompt_token_ids": [5, 9, 30, 7, 22, 41]}
        settings: Any = {"dtype": "float32", "max_model_len": 64}
        with LLM(str(tmp_path), activation_quantization=mode, **settings) as llm:
            (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        return [entry.logprob for each in output.prompt_logprobs if each for entry in each.values()]

    assert found("auto") == found("off") != found("on")
