"""Every model that reads images is compared with transformers, on text alone too."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.commands.models.command import read_table
from tests.builtin_plugins.models.vision.checkpoints import MODELS

ELSEWHERE = {
    "Blip2ForConditionalGeneration",
    "Florence2ForConditionalGeneration",
    "FuyuForCausalLM",
}
"""Models with files of tests of their own."""
OF_TIMM = {"Gemma3nForConditionalGeneration"}
"""Models that only timm's tower makes."""


@pytest.mark.slow
def test_every_architecture_that_reads_images_has_a_tiny_checkpoint(tmp_path: Path) -> None:
    made = set(ELSEWHERE)
    for name, model in MODELS.items():
        if model.needs == "timm" and importlib.util.find_spec("timm") is None:
            made |= OF_TIMM
            continue
        model.make(tmp_path / name)
        made.update(json.loads((tmp_path / name / "config.json").read_text())["architectures"])
    assert {name for name, row in read_table().items() if row.get("images")} - made == set()
