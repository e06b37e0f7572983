"""The model author's page: its example serves as a one-file plugin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.testing.plugins import tmp_plugin
from tests.builtin_plugins.models.test_engine_parity import assert_equal, expect, open_engine, run
from tests.system.docs.pages import DOCS, blocks


@pytest.fixture(scope="module")
def visible() -> str:
    """Return the first Python on the page."""
    page = DOCS / "extend" / "architectures.md"
    return next(text for language, _, text in blocks(page) if language == "python")


def test_example_architecture_equals_transformers(
    visible: str,
    tmp_path: Path,
    checkpoint: Callable[[str], Path],
    by_transformers: Callable[[Path], Any],
) -> None:
    original = checkpoint("Exaone4ForCausalLM")
    folder = Path(shutil.copytree(original, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"architectures": ["MyModelForCausalLM"]})
    )
    mine = visible.replace("Exaone4ForCausalLM", "MyModelForCausalLM")
    mine = mine.replace('"builtin_plugins.models.exaone4:spec"', "spec")
    cases = [expect(by_transformers(original), length) for length in (70, 33)]
    with (
        tmp_plugin(mine, "my_model") as file,
        open_engine(folder, plugins=[file], model_impl="native") as llm,
    ):
        assert_equal(run(llm, cases), cases)
