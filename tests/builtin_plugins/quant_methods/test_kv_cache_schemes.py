"""A checkpoint's scheme sets the KV cache dtype."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.modelopt.method import ModelOpt
from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint

SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
FP8 = "float8_e4m3fn"


@pytest.mark.parametrize(
    ("method", "stated", "dtype"),
    [
        (CompressedTensors, {"kv_cache_scheme": SCHEME}, FP8),
        (CompressedTensors, {"kv_cache_scheme": SCHEME | {"strategy": "attn_head"}}, FP8),
        (CompressedTensors, {"kv_cache_scheme": None}, None),
        (CompressedTensors, {"kv_cache_scheme": SCHEME | {"type": "int"}}, None),
        (CompressedTensors, {"kv_cache_scheme": SCHEME | {"num_bits": 4}}, None),
        (ModelOpt, {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, FP8),
        (
            ModelOpt,
            {
                "quant_algo": "FP8",
                "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            },
            FP8,
        ),
        (ModelOpt, {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, None),
        (ModelOpt, {"quant_algo": "FP8"}, None),
    ],
)
def test_config_gives_kv_cache_dtype(
    method: Any, stated: dict[str, Any], dtype: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert method(stated).kv_dtype("model.layers.0.self_attn") == dtype
    unknown = dtype is None and any(
        name.startswith("kv_cache") and value for name, value in stated.items()
    )
    assert ("expected fp8" in caplog.text) is unknown


def logprobs(folder: Path, kv_cache_dtype: str) -> list[float]:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(str(folder), dtype="float32", max_model_len=64, kv_cache_dtype=kv_cache_dtype) as llm:
        (output,) = llm.generate(
            [{"prompt_token_ids": [5, 9, 30, 7, 22, 41, 8, 17, 3]}], params, use_tqdm=False
        )
    assert output.prompt_logprobs is not None
    return [entry.logprob for each in output.prompt_logprobs if each for entry in each.values()]


def test_checkpoint_kv_cache_dtype_unless_flag_overrides(tmp_path: Path) -> None:
    plain = make_checkpoint("LlamaForCausalLM", tmp_path / "plain", seed=3)
    stating = make_checkpoint("LlamaForCausalLM", tmp_path / "stating", seed=3)
    for folder in (plain, stating):
        tensors = load_file(folder / "model.safetensors")
        scales = {
            f"model.layers.{i}.self_attn.{part}_scale": torch.tensor(0.05)
            for i in range(2)
            for part in "kv"
        }
        save_file({**tensors, **scales}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((stating / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": SCHEME,
        "config_groups": {},
    }
    (stating / "config.json").write_text(json.dumps(config))

    covered = logprobs(plain, "fp8")
    whole = logprobs(plain, "auto")
    assert covered != whole
    assert logprobs(stating, "auto") == covered
    assert logprobs(stating, "bfloat16") != covered


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        (
            {
                "quant_method": "quark",
                "global_quant_config": {},
                "layer_quant_config": {
                    name: {"output_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}
                    for name in ("*k_proj", "*v_proj")
                },
            },
            "{0}_proj.output_scale",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "kv_cache_scheme": SCHEME,
                "config_groups": {},
            },
            "{0}_proj.output_scale",
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "FP8",
                "exclude_modules": ["*"],
                "kv_cache_quant_algo": "FP8",
            },
            "{0}_proj.{0}_scale",
        ),
    ],
    ids=["quark", "compressed-tensors", "modelopt"],
)
def test_scales_of_cached_keys_and_values_are_used(
    quantization: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """A checkpoint with scales per layer equals one that names them as attention does."""

    def write(folder: Path, scale_name: str, value: float) -> Path:
        make_checkpoint("LlamaForCausalLM", folder, seed=3)
        tensors = load_file(folder / "model.safetensors")
        for layer in range(2):
            for part in "kv":
                stem = f"model.layers.{layer}.self_attn.{scale_name.format(part)}"
                tensors[stem] = torch.tensor(value)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    own = write(tmp_path / "own", name, 0.05)
    config = json.loads((own / "config.json").read_text())
    config["quantization_config"] = quantization
    (own / "config.json").write_text(json.dumps(config))
    named = write(tmp_path / "named", "{}_scale", 0.05)
    other = write(tmp_path / "other", "{}_scale", 0.3)
    expected = logprobs(named, "fp8")
    assert logprobs(own, "auto") == expected
    assert logprobs(other, "fp8") != expected
