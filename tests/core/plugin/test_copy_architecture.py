"""`engine plugins new --from NAME`: a copy of every builtin decoder passes conformance."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from builtin_plugins.commands.plugins.scaffold import write_package
from core.testing.checkpoints import ARCHITECTURES
from core.testing.conformance import check_plugin

COPIED = sorted({*ARCHITECTURES} & {*dir(transformers)})


@pytest.mark.slow
@pytest.mark.parametrize("architecture", COPIED)
def test_copied_architecture_passes_conformance(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"copy_{COPIED.index(architecture)}"
    write_package(name, "models", tmp_path, begins_as=architecture)
    assert "builtin_plugins" not in (tmp_path / f"engine_{name}" / "model.py").read_text()
    monkeypatch.syspath_prepend(tmp_path)
    results = list(check_plugin(f"engine_{name}.plugin"))
    assert [f"{each.check}: {each.error}" for each in results if not each.passed] == []
    assert "equals its oracle" in {each.check for each in results}
