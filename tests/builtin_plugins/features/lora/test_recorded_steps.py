"""Recorded steps with adapters match eager ones while slots change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.library import load_library
from safetensors.torch import load_file, save_file

from builtin_plugins.platforms.cpu.recorded import RecordedModel
from core import LLM, LoRARequest, SamplingParams
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter

PROMPTS = [[5, 6, 7], [9], list(range(20, 60)), [3, 3]]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1, detokenize=False)
SETTINGS: dict[str, Any] = {
    "max_model_len": 64,
    "dtype": "float32",
    "kv_cache_memory_bytes": 1 << 23,
    "enable_lora": True,
    "max_loras": 2,
    "max_cpu_loras": 8,
    "log_level": "error",
}
Logprobs = list[list[tuple[int, float]]]

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[RecordedModel]:
    """Return the models recorded from now on."""
    made: list[RecordedModel] = []
    start: Callable[..., None] = RecordedModel.__init__

    def record(self: RecordedModel, *arguments: Any) -> None:
        start(self, *arguments)
        made.append(self)

    monkeypatch.setattr(RecordedModel, "__init__", record)
    return made


def generate(llm: LLM, adapters: list[LoRARequest | None]) -> Logprobs:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=adapters)
    assert [output.error for output in outputs if output.error] == []
    answers = [output.outputs[0].logprobs or () for output in outputs]
    return [
        [(token, entry.logprob) for position in answer for token, entry in position.items()]
        for answer in answers
    ]


def test_recorded_steps_match_eager_steps(tmp_path: Path, models: list[RecordedModel]) -> None:
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=3)
    folders = [
        make_adapter(model, tmp_path / f"a{n}", rank, seed=n, only=only)
        for n, (rank, only) in enumerate(
            [(4, "layers.*[qv]_proj"), (8, "layers.*[qv]_proj"), (16, "layers"), (3, "_proj")]
        )
    ]
    path = folders[3] / "adapter_model.safetensors"  # the last one changes the embedding as well
    vocab, hidden = load_file(model / "model.safetensors")["model.embed_tokens.weight"].shape
    factors = {"A": torch.randn(3, vocab) * 0.1, "B": torch.randn(hidden, 3) * 0.1}
    added = {
        f"base_model.model.model.embed_tokens.lora_embedding_{name}": tensor
        for name, tensor in factors.items()
    }
    save_file(load_file(path) | added, path)
    a, b, c, d = (LoRARequest(folder.name, n, str(folder)) for n, folder in enumerate(folders, 1))
    batches: list[list[LoRARequest | None]] = [
        [a, b, None, a],
        [c, None, a, c],
        [None] * 4,
        [b, a, b, None],
        [d, a, d, c],
    ]
    answers = []
    numbers = []
    for eager in (False, True):
        with LLM(str(model), enforce_eager=eager, **SETTINGS) as llm:
            results = []
            for batch in batches:
                results.append(generate(llm, batch))
                if not eager:
                    numbers.append({kind[1] for kind in models[0]._programs})
            answers.append(results)
    assert answers[0] == answers[1]
    assert models[0]._refused == {}
    first, grown, *others = numbers
    assert len(first - {0}) == 1, "0: rows without adapters may run alone while adapters load"
    assert len(grown - first - {0}) == 1, "an adapter of more modules is another number"
    assert others == [{0, max(grown)}] * 3, (
        "slot changes and torch deltas leave the graph key unchanged"
    )
