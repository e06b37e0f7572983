"""The model author's page: its code is the example file, and serves as a one-file plugin."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.testing.plugins import tmp_plugin
from tests.builtin_plugins.models.test_engine_parity import assert_equal, expect, open_engine, run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def visible() -> str:
    """Return the first Python on the page."""
    found = re.search(
        r"```python\n(.*?)```",
        (ROOT / "docs" / "extend" / "architectures.md").read_text(),
        re.DOTALL,
    )
    assert found is not None
    return found[1]


def test_author_page_shows_the_whole_file(visible: str) -> None:
    docstring, _, code = (
        (ROOT / "builtin_plugins" / "models" / "exaone4.py").read_text().partition("\n\n")
    )
    assert docstring.startswith('"""')
    assert code == visible


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
