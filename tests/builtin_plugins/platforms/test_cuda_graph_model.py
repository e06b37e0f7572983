"""Recorded small steps equal plain calls bitwise; unsupported steps are plain calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.elementwise import ElementOps
from core_kernels.library import load_library

from builtin_plugins.platforms.cpu import recorded
from builtin_plugins.platforms.cpu.recorded import MAX_RECORDED_TOKENS, RecordedModel
from core import LLM, SamplingParams
from core.api.models import ForwardBatch
from core.testing.checkpoints import make_checkpoint

LIBRARY = load_library()
RECORDED = [
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Gemma3ForCausalLM",
    "PhiForCausalLM",
    "GPT2LMHeadModel",
]
LEFT = ["MixtralForCausalLM", "MambaForCausalLM", "DeepseekV2ForCausalLM"]

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


class Counting(torch.nn.Module):
    """Looks ids up and adds one; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        assert LIBRARY is not None
        self.calls = 0
        self.reads = ""
        self.table = torch.arange(40.0).view(10, 4)
        self._elements = ElementOps(LIBRARY)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.calls += 1
        if self.reads:
            len(getattr(batch, self.reads))
        if batch.embeddings is not None:
            return batch.embeddings + 1
        rows = self._elements.take(self.table, batch.input_ids)
        assert rows is not None
        return rows + 1


def batch_of(*ids: int) -> ForwardBatch:
    count = len(ids)
    tokens = torch.tensor(ids)
    return ForwardBatch(
        tokens, tokens, (), [0] * count, [0] * count, [1] * count, [1] * count, torch.zeros(1, 8)
    )


def wrapped(model: Counting) -> RecordedModel:
    assert LIBRARY is not None
    return RecordedModel(model, LIBRARY)  # type: ignore[arg-type]


def test_third_step_of_a_size_is_replayed() -> None:
    model = Counting()
    call = wrapped(model)
    with torch.inference_mode():
        for ids in ((1, 2), (3, 4), (5, 6), (9, 0)):
            assert torch.equal(call(batch_of(*ids)), model.table[list(ids)] + 1)
        assert model.calls == 2
        first = call(batch_of(1, 2))
        second = call(batch_of(3, 4))
    assert torch.equal(first, model.table[[1, 2]] + 1)
    assert torch.equal(second, model.table[[3, 4]] + 1)
    assert model.calls == 2


def test_unusual_steps_are_plain_calls() -> None:
    model = Counting()
    call = wrapped(model)
    plain = batch_of(1, 2)
    with torch.inference_mode():
        for _ in range(3):
            call(plain)
        for other in (
            replace(plain, embeddings=torch.ones(2, 4)),
            replace(plain, token_types=torch.zeros(2, dtype=torch.int64)),
            replace(plain, rope_positions=torch.zeros(3, 2, dtype=torch.int64)),
            replace(plain, entering=[object()]),  # type: ignore[list-item]
            batch_of(*([1] * (MAX_RECORDED_TOKENS + 1))),
        ):
            before = model.calls
            call(other)
            call(other)
            call(other)
            assert model.calls == before + 3


@pytest.mark.parametrize("name", ["rows", "starts", "counts", "prompt_lens", "token_ids"])
def test_model_that_reads_host_values_is_called_every_step(name: str) -> None:
    model = Counting()
    model.reads = name
    call = wrapped(model)
    with torch.inference_mode():
        for _ in range(5):
            assert torch.equal(call(batch_of(1)), model.table[[1]] + 1)
    assert model.calls == 5


def test_model_with_adapters_is_called_every_step() -> None:
    model = Counting()
    model.adapter = lambda *_: None  # type: ignore[assignment]
    call = wrapped(model)
    with torch.inference_mode():
        for _ in range(4):
            call(batch_of(1))
    assert model.calls == 4


def test_invalid_token_id_fails_only_its_step() -> None:
    model = Counting()
    call = wrapped(model)
    with torch.inference_mode():
        for _ in range(3):
            call(batch_of(1))
        with pytest.raises(IndexError):
            call(batch_of(10))
        assert torch.equal(call(batch_of(9)), model.table[[9]] + 1)


@pytest.mark.parametrize("architecture", RECORDED + LEFT)
def test_recorded_and_plain_steps_have_equal_tokens(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RecordedModel] = []
    start: Callable[..., None] = RecordedModel.__init__

    def stored(self: RecordedModel, *arguments: Any) -> None:
        start(self, *arguments)
        made.append(self)

    monkeypatch.setattr(recorded.RecordedModel, "__init__", stored)
    folder = str(make_checkpoint(architecture, tmp_path, seed=3))
    prompts = [[5, 6, 7], [9], list(range(20, 60)), [3, 3]]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=1)
    answers = []
    for eager in (False, True):
        settings = {
            "max_model_len": 64,
            "dtype": "float32",
            "kv_cache_memory_bytes": 1 << 23,
            "log_level": "error",
        }
        with LLM(
            folder, enforce_eager=eager, structured_outputs_config={"warm_up": False}, **settings
        ) as llm:  # type: ignore[arg-type]
            answers.append(
                [
                    [
                        (list(logprobs), [entry.logprob for entry in logprobs.values()])
                        for logprobs in each.outputs[0].logprobs or ()
                    ]
                    for each in llm.generate(prompts, params, use_tqdm=False)
                ]
            )
    assert answers[0] == answers[1]
    assert len(made) == 1
    assert bool(made[0]._programs) == (architecture in RECORDED), made[0]._refused
