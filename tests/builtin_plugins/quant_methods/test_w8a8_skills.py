"""The demo model as a W8A8 checkpoint answers as well as it does unquantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.cli.main import main
from examples.demo_model.evaluate import SHIPPED, answers, score
from examples.demo_model.mix import SKILLS, evaluation_items

pytestmark = pytest.mark.slow
ITEMS_PER_SKILL = 50
ALLOWED_POINTS = 0.5
"""Difference of the percentages of right answers, over all skills."""


def percentage(model: str, **settings: Any) -> float:
    items = [item for skill in SKILLS for item in evaluation_items(skill, 0, ITEMS_PER_SKILL)]
    with LLM(model, log_level="error", num_threads=1, **settings) as llm:
        scores = score(items, answers(llm, items))
    right, count = (sum(found["all"][part] for found in scores.values()) for part in (0, 1))
    assert count == len(items)
    return 100 * right / count


def test_skills_stay_with_eight_bit_weights_and_activations(tmp_path: Path) -> None:
    folder = str(tmp_path / "w8a8")
    assert main(["quantize", str(SHIPPED), folder, "--scheme", "w8a8"]) == 0
    expected = percentage(str(SHIPPED))
    for mode in ("auto", "on"):
        found = percentage(folder, activation_quantization=mode)
        assert abs(found - expected) <= ALLOWED_POINTS, mode
