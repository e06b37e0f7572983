"""Vision-language models have transformers' tokens: batches, chunks, cache hits, preemption, ranks.

A new model is an entry in a module of `checkpoints`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.features.multimodal import settings
from builtin_plugins.features.multimodal.encoding_in_parts import EncodingInParts
from core import LLM
from core.cli.main import main
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.builtin_plugins.models.vision.parity import (
    AGAIN,
    LAST,
    LONG_TOKENS,
    NONE,
    NUM_TOKENS,
    ONE,
    OTHER,
    THREE,
    Reference,
    counters,
    generate,
)

FAST = ("gemma3",)
"""Models of the fast suite: the others start an engine each."""
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 40,
}
"""Chunks of 40 tokens cut through the images of prompts with three."""
ALL = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]
OWN_MODULES = ["gemma3", "qwen3_vl"]
"""Look-ahead attention, positions with three axes, deepstack."""
TWO_RANKS = [name for name, model in MODELS.items() if model.two_ranks]


class Served:
    """A checkpoint, its engine, and its reference."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.model = MODELS[name]
        if self.model.needs is not None:
            pytest.importorskip(self.model.needs, reason=f"{self.model.needs} is not installed")
        self.image = self.model.image
        self.blocks = self.model.blocks
        self.settings = {**SETTINGS, **self.model.settings}
        MODELS[name].make(folder)
        self.reference = Reference(folder, self.image)

    def start(self, **settings: Any) -> LLM:
        return LLM(str(self.folder), **{**self.settings, **settings})

    def check(self, llm: LLM, *cases: Any, num_tokens: int = NUM_TOKENS) -> list[Any]:
        outputs = generate(llm, self.image, cases, num_tokens)
        for case, output in zip(cases, outputs, strict=True):
            self.reference.check(case, output)
        return outputs


@pytest.fixture(scope="module", params=ALL)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llm(served: Served) -> Iterator[LLM]:
    with served.start() as made:
        yield made


def test_batches_of_unequal_images_equal_transformers(served: Served, llm: LLM) -> None:
    served.check(llm, ONE, OTHER, THREE, NONE)
    assert counters(llm)["encoded"] == 3


def test_prefix_hits_equal_transformers_and_encode_nothing(served: Served, llm: LLM) -> None:
    served.check(llm, THREE)
    before = counters(llm)
    (output,) = served.check(llm, THREE)
    assert output.num_cached_tokens > 0
    assert counters(llm)["encoded"] == before["encoded"]


def test_another_image_is_no_prefix_hit(served: Served, llm: LLM) -> None:
    served.check(llm, ONE, THREE)
    (output,) = served.check(llm, AGAIN)
    if served.model.shares_prefixes:
        assert 0 < output.num_cached_tokens < len(output.prompt_token_ids)
    else:
        assert not output.num_cached_tokens


@pytest.mark.slow
def test_a_prefix_before_another_last_image_equals_transformers(served: Served, llm: LLM) -> None:
    served.check(llm, THREE)
    served.check(llm, LAST)


@pytest.mark.slow
def test_preempted_requests_equal_transformers(served: Served) -> None:
    preemptions = 0
    own = {"max_model_len": None, "enable_prefix_caching": False}
    for blocks in served.model.blocks:
        with served.start(num_gpu_blocks_override=blocks, **own) as llm:
            served.check(llm, *[ONE, OTHER] * 4, num_tokens=LONG_TOKENS)
            preemptions += llm.core.scheduler.num_preemptions
        if preemptions:
            return
    pytest.fail("no number of blocks preempts a request")


@pytest.mark.slow
def test_an_encoder_cache_of_one_item_equals_transformers(served: Served) -> None:
    with served.start(mm_encoder_cache_tokens=1, mm_encoder_step_tokens=1) as llm:
        served.check(llm, THREE, ONE, OTHER)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_images_encoded_in_parts_equal_transformers(
    served: Served, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SLICE_TOKENS", 2)
    parts: list[int] = []
    advance = EncodingInParts.advance

    def counting(running: EncodingInParts, part: int, num_parts: int) -> None:
        parts.append(part)
        advance(running, part, num_parts)

    monkeypatch.setattr(EncodingInParts, "advance", counting)
    own = {"max_mixed_prefill_tokens": 40, "async_scheduling": depth == 2}
    with served.start(**own) as llm:
        served.check(llm, NONE, ONE, THREE, OTHER, num_tokens=LONG_TOKENS)
    assert max(parts, default=2) > 1, "none where all prompts begin in the first step"


@pytest.mark.slow
def test_two_steps_in_flight_equal_transformers(served: Served) -> None:
    with served.start(async_scheduling=True) as llm:
        served.check(llm, THREE, ONE, OTHER, NONE, AGAIN)


@pytest.mark.slow
@pytest.mark.parametrize("served", TWO_RANKS, indirect=True, scope="module")
def test_two_ranks_equal_transformers(served: Served) -> None:
    with served.start(tensor_parallel_size=2) as llm:
        served.check(llm, THREE, ONE, OTHER, NONE)


@pytest.mark.slow
@pytest.mark.parametrize("served", OWN_MODULES, indirect=True, scope="module")
def test_own_modules_of_transformers_equal_it(served: Served) -> None:
    with served.start(model_impl="transformers") as llm:
        served.check(llm, THREE, ONE, OTHER, NONE, AGAIN)


@pytest.mark.slow
def test_memory_plan_counts_the_tower(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    if not served.model.plans_memory:
        assert main(["plan", str(served.folder), "--max-model-len", "256", "--json"]) == 1
        assert "is known only after loading" in capsys.readouterr().err
        return
    assert main(["plan", str(served.folder), "--max-model-len", "256", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    with safe_open(served.folder / "model.safetensors", "pt") as file:
        sizes = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118
    audio = sum(size for name, size in sizes.items() if ".audio_embed." in name)
    assert plan["weight_bytes"] == pytest.approx([plan["checkpoint_bytes"] - audio], rel=0.01)
    (encoder,) = plan["features"]["multimodal"]
    config = json.loads((served.folder / "config.json").read_text())
    hidden = config.get("text_config", config)["hidden_size"]
    assert encoder > 16384 * hidden * 4, "a full encoder cache, and the largest image"
