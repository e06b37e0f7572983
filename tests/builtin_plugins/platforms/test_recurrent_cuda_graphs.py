"""Recorded decode steps of recurrent models; padding has its own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint
from core.testing.tiny_linear import LINEAR
from core.testing.tiny_recurrent import RECURRENT
from tests.builtin_plugins.platforms.fake_gpu import NO_CPU, FakeGpu

FAKE = str(Path(__file__).with_name("fake_gpu_plugin.py"))
QUICKEST = "MambaForCausalLM"
"""States of channels; states of heads and the delta rule take longer."""
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
        pytest.param(name, marks=() if name == QUICKEST else pytest.mark.slow)
        for name in sorted({*RECURRENT, *LINEAR})
    ],
)
def test_recorded_decode_steps_have_equal_states(architecture: str, tmp_path: Path) -> None:
    """Rows end one by one, which needs padding; block boundaries are crossed."""
    fewer: dict[str, Any] = {"num_hidden_layers": 2} if architecture == QUICKEST else {}
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
