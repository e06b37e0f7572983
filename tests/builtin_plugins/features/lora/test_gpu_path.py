"""Adapters on the GPU path: rows of several adapters in one launch, in recorded steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from core_kernels.low_rank import LowRankLayer

from core import LLM, LoRARequest, SamplingParams
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter

PLATFORMS = Path(__file__).parents[2] / "platforms"
NO_CPU = ("no:ops_cpu", "no:quant_cpu_packed", "no:attention_paged")
PROMPTS = [[5, 6, 7], [9], [3, 3]]
PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, detokenize=False)


def tokens(
    model: Path, batches: list[list[LoRARequest | None]], **settings: Any
) -> list[list[list[int]]]:
    sizes = {
        "max_model_len": 32,
        "max_num_seqs": 3,
        "num_gpu_blocks_override": 40,
        "max_loras": 2,
        "max_cpu_loras": 8,
    }
    with LLM(
        str(model), dtype="float32", skip_tokenizer_init=True, enable_lora=True, **sizes, **settings
    ) as llm:
        outputs = [
            llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=batch) for batch in batches
        ]
    return [[list(each.outputs[0].token_ids) for each in batch] for batch in outputs]


@pytest.mark.slow
def test_gpu_path_matches_cpu_with_and_without_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PLATFORMS)
    model = make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=3)
    a, b, c = (
        LoRARequest(
            f"a{n}",
            n + 1,
            str(make_adapter(model, tmp_path / f"a{n}", rank, seed=n, only="layers.*[qvu]")),
        )
        for n, rank in enumerate((4, 8, 3))
    )
    batches: list[list[LoRARequest | None]] = [[a, b, None], [c, None, a]]
    fake: dict[str, Any] = {
        "device": "fake",
        "plugins": [str(PLATFORMS / "fake_gpu_plugin.py"), *NO_CPU],
    }
    expected = tokens(model, batches, device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(LowRankLayer, "__init__", None)  # the CPU's kernel would raise
        assert tokens(model, batches, **fake) == expected
        from tests.builtin_plugins.platforms.fake_gpu import FakeGpu

        assert any(kind[1] for kind in FakeGpu.made._recorded), "steps with adapters were recorded"
        assert FakeGpu.recorder.replays > 0
        assert tokens(model, batches, enforce_eager=True, **fake) == expected
    assert "core_kernels.triton.low_rank" in sys.modules
