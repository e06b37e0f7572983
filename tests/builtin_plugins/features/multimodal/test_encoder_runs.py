"""The tower runs once for each distinct image, and never for a prefix hit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.models.vision.tower import TransformersTower
from core import LLM, SamplingParams
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.builtin_plugins.models.vision.parity import counters, picture

pytestmark = pytest.mark.slow
PICTURES = [picture(seed, 40 + 4 * (seed % 3), 30) for seed in range(10)]
REQUESTS = 100
SHORT = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    MODELS["llava"].make(folder)
    return folder


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[float]:
    """Count the runs of towers in this process, by the sum of their pixels."""
    found: Counter[float] = Counter()
    encode = TransformersTower.encode

    def counting(tower: Any, modality: str, inputs: dict[str, torch.Tensor]) -> Any:
        found[float(inputs["pixel_values"].double().sum())] += 1
        return encode(tower, modality, inputs)

    monkeypatch.setattr(TransformersTower, "encode", counting)
    return found


def prompts(prefix: str) -> list[dict[str, Any]]:
    """Return the prompts of 100 requests that share 10 images, each with text of its own."""
    return [
        {
            "prompt": f"{prefix.format(i)}<image> request {i}",
            "multi_modal_data": {"image": PICTURES[(7 * i) % len(PICTURES)]},
        }
        for i in range(REQUESTS)
    ]


def start(folder: Path, **settings: Any) -> LLM:
    return LLM(
        str(folder), **{"dtype": "float32", "max_model_len": 128, "block_size": 4, **settings}
    )


def test_each_image_is_encoded_once_over_all_requests(folder: Path, runs: Counter[float]) -> None:
    with start(folder, max_num_batched_tokens=64) as llm:  # many steps
        llm.generate(prompts("{} "), SHORT, use_tqdm=False)  # no prefix is shared
        assert sorted(runs.values()) == [1] * len(PICTURES)
        found = counters(llm)
        assert found["encoded"] == len(PICTURES)
        assert found["hits"] > 0
        outputs = llm.generate(prompts("{} "), SHORT, use_tqdm=False)
        assert sum(bool(output.num_cached_tokens) for output in outputs) >= REQUESTS - 1
        assert sum(runs.values()) == len(PICTURES)


def test_prefix_hits_after_an_eviction_run_no_tower(folder: Path, runs: Counter[float]) -> None:
    one_item = {"mm_encoder_cache_tokens": 1, "mm_encoder_step_tokens": 1}
    with start(folder, **one_item) as llm:
        llm.generate(prompts("look "), SHORT, use_tqdm=False)
        found = counters(llm)
        assert sum(runs.values()) == found["encoded"] <= len(PICTURES) + found["evicted"]
        outputs = llm.generate(prompts("look "), SHORT, use_tqdm=False)
        assert all(output.num_cached_tokens for output in outputs)
        assert sum(runs.values()) == found["encoded"]


@pytest.mark.parametrize("num_items", [1, 3])
def test_an_evicted_image_is_encoded_once_more_for_each_eviction(
    folder: Path, runs: Counter[float], num_items: int
) -> None:
    settings = {"mm_encoder_cache_tokens": 16 * num_items, "enable_prefix_caching": False}
    with start(folder, **settings) as llm:
        for prompt in prompts("{} "):
            llm.generate(prompt, SHORT, use_tqdm=False)
        found = counters(llm)
        assert sum(runs.values()) == found["encoded"]
        assert found["encoded"] - found["evicted"] == num_items
        # Ten images in a cycle: a cache of fewer loses each one before its next request.
        assert found["encoded"] == REQUESTS
