"""A setting that no layer of the model uses is refused by name, or named in the log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.errors import ModelError
from core.testing.checkpoints import make_checkpoint

ARCHITECTURES = ("LlamaForCausalLM", "MambaForCausalLM", "MistralForCausalLM")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: make_checkpoint(name, tmp_path_factory.mktemp(name), seed=3) for name in ARCHITECTURES
    }


def start(folder: Path, **options: Any) -> str:
    """Return the error of a start; empty without any."""
    settings = {
        "skip_tokenizer_init": True,
        "max_model_len": 32,
        "num_gpu_blocks_override": 8,
        "dtype": "float32",
        "num_threads": 1,
    }
    try:
        LLM(str(folder), **{**settings, **options}).shutdown()
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("architecture", "options", "error"),
    [
        (
            "LlamaForCausalLM",
            {"model_impl": "transformers", "kv_cache_dtype": "fp8"},
            "--kv-cache-dtype fp8: no layer of this model supports it (supported: float32)",
        ),
        (
            "MambaForCausalLM",
            {"kv_cache_dtype": "fp8"},
            "--kv-cache-dtype fp8: no layer of this model supports it (supported: none",
        ),
        (
            "LlamaForCausalLM",
            {"calculate_kv_scales": True},
            "--calculate-kv-scales: got True; expected a KV cache of one byte per value",
        ),
        (
            "LlamaForCausalLM",
            {"calculate_kv_scales": True, "kv_cache_dtype": "bfloat16"},
            "--calculate-kv-scales: got True; expected a KV cache of one byte per value",
        ),
        (
            "LlamaForCausalLM",
            {"mamba_cache_dtype": "bfloat16"},
            "--mamba-cache-dtype: got 'bfloat16'; expected a model with recurrent layers",
        ),
        (
            "LlamaForCausalLM",
            {"mamba_ssm_cache_dtype": "float16"},
            "--mamba-ssm-cache-dtype: got 'float16'; expected a model with recurrent layers",
        ),
        (
            "LlamaForCausalLM",
            {"quantization": "experts_int8"},
            "--quantization: got experts_int8; expected a model with experts",
        ),
        (
            "LlamaForCausalLM",
            {"hf_overrides": {"io_processor_plugin": "prithvi"}},
            "got 'prithvi'; expected none, because custom input and output processors",
        ),
    ],
)
def test_setting_that_no_layer_uses_is_refused(
    folders: dict[str, Path], architecture: str, options: dict[str, Any], error: str
) -> None:
    assert error in start(folders[architecture], **options)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("LlamaForCausalLM", {"calculate_kv_scales": True, "kv_cache_dtype": "fp8"}),
        ("MambaForCausalLM", {"mamba_cache_dtype": "bfloat16"}),
        ("MambaForCausalLM", {"mamba_ssm_cache_dtype": "float16"}),
    ],
)
def test_setting_that_layers_use_is_accepted(
    folders: dict[str, Path], architecture: str, options: dict[str, Any]
) -> None:
    assert start(folders[architecture], **options) == ""


@pytest.mark.parametrize(
    "architecture", ["ZambaForCausalLM", "RwkvForCausalLM", "xLSTMForCausalLM"]
)
def test_states_have_the_chosen_dtype(architecture: str, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", seed=3)
    settings: dict[str, Any] = {"max_model_len": 32, "num_gpu_blocks_override": 8}
    settings |= {"dtype": "float32", "num_threads": 1, "mamba_ssm_cache_dtype": "bfloat16"}
    with LLM(str(folder), **settings) as llm:
        llm.generate("Hello", use_tqdm=False)
        (layers,) = llm.apply_model(lambda model: model.kv_layers)
    parts = [part for layer in layers for part in getattr(layer.spec, "parts", ())]
    assert "bfloat16" in {dtype for _, dtype in parts}


@pytest.mark.parametrize("key", ["sliding_window", "attention_chunk_size"])
def test_window_that_no_layer_has_is_named_in_the_log(
    folders: dict[str, Path], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert start(folders["LlamaForCausalLM"], hf_overrides={key: 8}) == ""
    assert f"config.json states {key} 8; no layer of LlamaForCausalLM uses it" in caplog.text


@pytest.mark.parametrize("overrides", [{"sliding_window": 8}, {"use_sliding_window": False}])
def test_window_that_layers_have_is_not_named(
    folders: dict[str, Path], overrides: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert start(folders["MistralForCausalLM"], hf_overrides=overrides) == ""
    assert "config.json states" not in caplog.text
