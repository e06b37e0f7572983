"""Shared files of the tests, each written once."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    sys.path.insert(0, str(folder))

gguf_files = pytest.importorskip("gguf_files", exc_type=ImportError)

from core.testing.checkpoints import make_checkpoint  # noqa: E402 - after the check for the library

WIDE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512, "num_hidden_layers": 2}
"""Widths of whole 256-number blocks."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """Return a function that writes a tiny model as GGUF file and plain checkpoint, cached."""
    root = tmp_path_factory.mktemp("gguf")
    cache = {}

    def make(architecture: str, kinds: dict[str, str] | str, **overrides: Any) -> tuple[Path, Path]:
        key = (architecture, str(kinds), str(overrides))
        if key not in cache:
            wide = {
                name: size
                for name, size in WIDE.items()
                if name != "head_dim" or "Deepseek" not in architecture
            }
            folder = make_checkpoint(
                architecture, root / f"{len(cache)}", seed=1, **{**wide, **overrides}
            )
            path = root / f"{len(cache)}.gguf"

            def kind_of(name: str) -> str:
                if isinstance(kinds, str):
                    return kinds
                return next((kind for part, kind in kinds.items() if part in name), "Q8_0")

            cache[key] = path, gguf_files.Converter(folder, kind_of).convert(path)
        return cache[key]

    return make


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the plugin discoverable as if installed, in this process and its children."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = project["name"]
    found = tmp_path_factory.mktemp("installed")
    facts = found / f"{name.replace('-', '_')}-{project['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {project['version']}\n"
    )
    lines = [f"[{group}]\n{key} = {value}\n" for group, entries in project["entry-points"].items()
             for key, value in entries.items()]  # fmt: skip
    (facts / "entry_points.txt").write_text("".join(lines))
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(found))
    patch.setenv(
        "PYTHONPATH", os.pathsep.join([str(found), str(root), os.environ.get("PYTHONPATH", "")])
    )
    yield
    patch.undo()


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirect cached tokenizer files away from the user's home."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    yield
    patch.undo()
