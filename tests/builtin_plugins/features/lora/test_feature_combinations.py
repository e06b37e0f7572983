"""Adapters with pooling, pipeline stages, quantization and speculation match merged checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from core import LLM, LoRARequest
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter, merge
from tests.builtin_plugins.features.lora.outputs import LORA, PROMPTS, SETTINGS, run
from tests.builtin_plugins.quant_methods.writers.gptq import config as gptq_config
from tests.builtin_plugins.quant_methods.writers.gptq import writer
from tests.builtin_plugins.quant_methods.writers.model import plain_tensors, quantize

TOLERANCE = 1e-3
"""For values around 1: merging changes where products are rounded."""


def request_of(folder: Path, number: int = 1) -> LoRARequest:
    return LoRARequest(folder.name, number, str(folder))


def vectors(model: Path, adapters: list[LoRARequest | None], **options: Any) -> torch.Tensor:
    """Return embeddings [adapters, prompts, size], computed in one batch."""
    with LLM(str(model), runner="pooling", **SETTINGS | options) as llm:
        given = (
            {"lora_request": [each for each in adapters for _ in PROMPTS]} if any(adapters) else {}
        )
        outputs = llm.embed(PROMPTS * len(adapters), use_tqdm=False, **given)
    found = torch.tensor([output.outputs.embedding for output in outputs])
    return found.view(len(adapters), len(PROMPTS), -1)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "BertModel"])
def test_pooling_matches_merged_checkpoints(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model", seed=3)
    adapters = [
        make_adapter(model, tmp_path / f"a{rank}", rank, seed=rank, only="layer") for rank in (4, 8)
    ]
    expected = [vectors(model, [None])]
    expected += [
        vectors(merge(model, each, tmp_path / f"merged {each.name}"), [None]) for each in adapters
    ]
    found = vectors(
        model, [None, *(request_of(each, n) for n, each in enumerate(adapters, 1))], **LORA
    )
    torch.testing.assert_close(found, torch.cat(expected), atol=TOLERANCE, rtol=0)
    assert (found[1:] - found[0]).norm(dim=-1).min() > 100 * TOLERANCE


def made(tmp_path: Path, architecture: str = "LlamaForCausalLM") -> tuple[Path, Path, list[Any]]:
    """Return a checkpoint, an adapter, and the tokens of the base and of the merged checkpoint."""
    model = make_checkpoint(architecture, tmp_path / "model", seed=3)
    adapter = make_adapter(model, tmp_path / "adapter", 8)
    expected = run(model, [None]) + run(merge(model, adapter, tmp_path / "merged"), [None])
    assert expected[0] != expected[1]
    return model, adapter, expected


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [{}, {"tensor_parallel_size": 2, "fully_sharded_loras": True}])
def test_pipeline_stages_load_their_part_of_an_adapter(
    ranks: dict[str, Any], tmp_path: Path
) -> None:
    model, adapter, expected = made(tmp_path)
    options = {"pipeline_parallel_size": 2, **LORA, **ranks}
    assert run(model, [None, request_of(adapter)], **options) == expected


def test_speculative_decoding_changes_no_token(tmp_path: Path) -> None:
    model, adapter, expected = made(tmp_path)
    speculative = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    assert (
        run(model, [None, request_of(adapter)], speculative_config=speculative, **LORA) == expected
    )


def test_quantized_checkpoint_with_adapter(tmp_path: Path) -> None:
    tensors = plain_tensors("LlamaForCausalLM", tmp_path / "model")
    stored, plain = quantize(tensors, writer(bits=4, group=16))
    for name, tensors in (("stored", stored), ("plain", plain)):
        folder = make_checkpoint("LlamaForCausalLM", tmp_path / name, seed=5)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    facts = json.loads((tmp_path / "stored" / "config.json").read_text())
    facts["quantization_config"] = gptq_config(bits=4, group=16)
    (tmp_path / "stored" / "config.json").write_text(json.dumps(facts))
    adapter = make_adapter(tmp_path / "plain", tmp_path / "adapter", 8)
    expected = run(tmp_path / "plain", [None]) + run(
        merge(tmp_path / "plain", adapter, tmp_path / "merged"), [None]
    )
    assert expected[0] != expected[1]
    assert run(tmp_path / "stored", [None, request_of(adapter)], **LORA) == expected


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rtn_weights_with_adapters(quantization: str) -> None:
    talk = [{"role": "user", "content": "Say hello hello hello."}]
    voices = [
        None,
        LoRARequest("capitals", 1, "demo:capitals"),
        LoRARequest("pirate", 2, "demo:pirate"),
    ]
    options: dict[str, Any] = {
        "max_model_len": 128,
        "kv_cache_memory_bytes": 8 << 20,
        "log_level": "error",
    }
    with LLM("demo:", quantization=quantization, max_loras=2, enable_lora=True, **options) as llm:
        outputs = llm.chat([talk] * 3, use_tqdm=False, lora_request=voices)
    plain, loud, arr = (output.outputs[0].text for output in outputs)
    assert plain
    assert loud == loud.upper() != plain
    assert arr.startswith("Arr!")
