"""Composite checkpoints answer text natively without the files of their processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from core import LLM
from core.errors import InvalidRequest
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.builtin_plugins.models.vision.parity import NONE, ONE, Case, Reference, generate

FAST = "mistral3"
COMPOSITES = (FAST, "gemma3", "gemma4", "llama4", "phi4_multimodal", "qwen3_5", "qwen3_5_moe")
TEXTS = [NONE, Case("another text, longer than one chunk of a prompt and than every tiny window")]
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 16,
    "limit_mm_per_prompt": {"image": 0},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each == FAST else pytest.mark.slow) for each in COMPOSITES],
)
def test_composites_answer_text_without_a_processor(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    model.make(tmp_path)
    reference = Reference(tmp_path, model.image)
    for path in tmp_path.glob("*process*.json"):
        path.unlink()
    with LLM(str(tmp_path), **SETTINGS) as llm:
        for _ in range(2):  # the second time the prefix cache is warm
            for case, output in zip(TEXTS, generate(llm, model.image, TEXTS), strict=True):
                reference.check(case, output)
        with pytest.raises(InvalidRequest, match="got 1 items; expected at most 0"):
            generate(llm, model.image, [ONE])
