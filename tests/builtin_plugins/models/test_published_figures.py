"""Published configurations: read as they are, and served with their shapes cut down."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.commands.api import memory_plan
from builtin_plugins.platforms.cpu.platform import CpuPlatform
from core import LLM, SamplingParams
from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.config.sections import ModelConfig
from core.model_spec.decoder import DecoderSpec
from core.models.layers.decoder import Decoder
from core.models.layers.loading import read_model, weight_bytes
from core.plugin.registry import Registry
from core.testing.checkpoints import write_tokenizer
from core.testing.one_sequence import plain_context
from tests.builtin_plugins.models.cut_down import cut_down
from tests.builtin_plugins.models.published_figures import FIGURES

FAST = {
    "meta-llama/Llama-3.1-8B-Instruct",
    "google/gemma-3-1b-it",
    "openai-community/gpt2",
    "RWKV/rwkv-4-169m-pile",
    "deepseek-ai/DeepSeek-V2-Lite",
}
EVERY = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in sorted(FIGURES)
]


def without_memory(dtype: torch.dtype) -> Any:
    """Return a context on the meta device."""
    return replace(plain_context(dtype=dtype), device="meta")


@pytest.mark.parametrize("name", EVERY)
def test_published_config_has_its_published_number_of_parameters(
    name: str, tmp_path: Path, registry: Registry
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FIGURES[name].config))
    settings = EngineConfig(ModelConfig(str(tmp_path)))
    source = registry.find_model(str(tmp_path), settings)
    assert source is not None
    spec, _ = read_model(settings, source, registry)
    assert isinstance(spec, DecoderSpec)
    # Rotary tables are no weights, and those of long contexts are slow to compute.
    short = replace(spec, max_positions=min(spec.max_positions, 64))
    shapes = Decoder(short, without_memory(torch.bfloat16)).weight_shapes()
    count = sum(map(math.prod, shapes.values())) / 1e9
    assert count == pytest.approx(FIGURES[name].parameters, rel=0.01)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes in bytes of all allocations of the platform."""
    sizes: list[int] = []
    allocate = CpuPlatform.allocate

    def counting(platform: CpuPlatform, num_bytes: int) -> torch.Tensor:
        sizes.append(num_bytes)
        return allocate(platform, num_bytes)

    monkeypatch.setattr(CpuPlatform, "allocate", counting)
    return sizes


@pytest.mark.parametrize("name", EVERY)
def test_cut_down_model_answers_and_takes_what_the_plan_says(
    name: str, tmp_path: Path, registry: Registry, allocated: list[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(cut_down(FIGURES[name].config)))
    write_tokenizer(tmp_path)
    settings: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": 128,
        "kv_cache_memory_bytes": "4M",
        "num_threads": 1,
        "log_level": "error",
    }
    config = config_from_kwargs({"model": str(tmp_path), **settings}, registry.options())
    plan = memory_plan(config, registry, serving=False)
    assert not allocated, "planning took memory"
    with LLM(str(tmp_path), **settings) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        prompts = ["Hello", "a longer prompt, for a second row"]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [8, 8]
        (weights,) = llm.apply_model(weight_bytes)
    # Packed panels are filled up to 64 rows.
    assert plan.weight_bytes == pytest.approx([weights], rel=0.05)
    assert sum(plan.kv_bytes) == pytest.approx(sum(allocated), rel=0.05)
    assert plan.context_length == 128
