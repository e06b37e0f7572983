"""Every causal LM type of transformers: equal to transformers, or rejected as the table states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.commands.models.command import rows
from core.errors import EngineError
from core.plugin.registry import Registry
from core.testing.shrunken import causal_types
from tests.builtin_plugins.models.test_engine_parity import assert_equal, expect, open_engine, run

LENGTHS = (70, 53)
"""Longer than every window of a tiny form, and than the first part of long rotary positions (48).
"""
FAST = {
    "axk1",
    "cohere2_moe",
    "diffllama",
    "mimo_v2_flash",
    "modernbert-decoder",
    "nanochat",
    "roberta",
}
"""Served by transformers' modules in as many ways: latents, experts, two calls a layer, values of
another size, windows.
"""
EVERY = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name in sorted(causal_types())
]


@pytest.fixture(scope="module")
def by_architecture(registry: Registry) -> dict[str, Any]:
    """Return the row of each architecture."""
    return {row.architecture: row for row in rows(registry.entries("models"))}


@pytest.fixture(scope="module")
def verdicts(by_architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the row of each model type."""
    return {kind: row for row in by_architecture.values() for kind in row.model_types}


@pytest.mark.parametrize("model_type", EVERY)
def test_model_type_equals_transformers_or_is_rejected(
    model_type: str,
    verdicts: dict[str, Any],
    by_architecture: dict[str, Any],
    tmp_path: Path,
    checkpoint: Callable[[str], Path],
    by_transformers: Callable[[Path], Any],
) -> None:
    row = verdicts[model_type]
    try:
        folder = checkpoint(model_type)
    except Exception:  # noqa: BLE001 - what transformers cannot make is no fault of ours
        if row.how != "native":
            assert row.how == "no", "what is served can be made"
            return
        text_part = causal_types()[model_type].replace("ForConditionalGeneration", "ForCausalLM")
        folder = checkpoint(text_part)
    config = json.loads((folder / "config.json").read_text())
    row = by_architecture.get(config["architectures"][0], row)
    # Text needs no files of an image processor.
    settings = {"limit_mm_per_prompt": {"image": 0}} if row.images else {}
    if row.how == "no":
        with pytest.raises(EngineError):
            open_engine(folder)
        return
    model = by_transformers(folder)
    cases = [expect(model, length) for length in LENGTHS]
    with open_engine(folder, max_num_batched_tokens=16, **settings) as llm:
        for _ in range(2):  # the second time the prefix cache is warm
            assert_equal(run(llm, cases), cases)
        assert_equal(run(llm, cases[:1]), cases[:1])
