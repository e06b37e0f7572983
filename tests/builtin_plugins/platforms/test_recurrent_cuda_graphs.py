"""Recorded decode steps of recurrent models; padding has its own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.config.build import config_from_kwargs
from core.engine.resolve import resolve
from core.kv import plan_layout
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import make_checkpoint
from core.testing.tiny_linear import LINEAR
from core.testing.tiny_recurrent import RECURRENT
from core.worker import Worker
from tests.builtin_plugins.platforms.fake_gpu import NO_CPU, FakeGpu

FAKE = str(Path(__file__).with_name("fake_gpu_plugin.py"))
ONE_OF_EACH = {
    "MambaForCausalLM",
    "Mamba2ForCausalLM",
}
"""A state of channels and one of heads; the delta rule takes longer."""
PROMPTS = [[(7 * i + 13 * n) % 200 for i in range(n)] for n in (14, 2, 9)]
SIZES: dict[str, Any] = {"max_num_seqs": 3, "max_model_len": 64, "num_gpu_blocks_override": 60}


def tokens_of(folder: Path, params: list[SamplingParams], **settings: Any) -> list[list[int]]:
    prompts: Any = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, **SIZES, **settings) as llm:
        return [
            list(out.outputs[0].token_ids) for out in llm.generate(prompts, params, use_tqdm=False)
        ]


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name in ONE_OF_EACH else pytest.mark.slow)
        for name in sorted({*RECURRENT, *LINEAR})
    ],
)
def test_recorded_decode_steps_have_equal_states(architecture: str, tmp_path: Path) -> None:
    """Rows end one by one, which needs padding; block boundaries are crossed."""
    fewer: dict[str, Any] = {"num_hidden_layers": 2} if architecture in ONE_OF_EACH else {}
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1, **fewer)
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (7, 3, 5)]
    found = tokens_of(folder, params, device="fake", plugins=[FAKE, *NO_CPU], mamba_block_size=16)
    assert FakeGpu.recorder.replays > 0
    made = FakeGpu.made
    assert made is not None
    assert {decodes for _, _, decodes in made._recorded} == {True}
    parts: Any = made._model.modules()  # type: ignore[attr-defined]
    states = [part.cache for part in parts if isinstance(getattr(part, "cache", None), tuple)]
    assert states
    assert not any(state[0].any() for layer in states for state in layer), (
        "what sequences begin with has changed"
    )
    assert found == tokens_of(folder, params, device="cpu", enforce_eager=True)


def test_dummy_step_changes_only_padding_state(tmp_path: Path) -> None:
    folder = make_checkpoint("Mamba2ForCausalLM", tmp_path / "model", seed=1, num_hidden_layers=1)
    registry = load_plan(make_plan([FAKE, *NO_CPU]))
    given = {
        "model": str(folder),
        "device": "fake",
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 4,
    }
    resolved = resolve(config_from_kwargs(given, registry.options()), registry, serving=False)
    worker = Worker(resolved.config, registry, resolved.source)
    info = worker.start()
    limits = {"block_size": 16, "max_model_len": 64, "max_num_seqs": 4}
    layout = plan_layout(info.layers, memory_bytes=0, num_blocks=8, **limits)
    worker.allocate(layout)
    (caches,) = (
        part.cache
        for part in worker.model.modules()
        if isinstance(getattr(part, "cache", None), tuple)
    )  # type: ignore[attr-defined]
    padding = layout.padding_block(0)
    with torch.inference_mode():
        for state in caches:
            state[1:] = 1
    for _ in range(4):  # plain, recorded, done again
        worker.dummy(3)
    assert FakeGpu.recorder.replays > 0
    for state in caches:
        assert len(state) == padding + 1
        assert not state[0].any()
        assert bool((state[1:padding] == 1).all())
        assert not torch.equal(state[padding], torch.ones_like(state[padding]))
    worker.close()
