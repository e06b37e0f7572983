"""Plugins as they were written for a release, one file of text for each: run as a program, it
writes that of this release.

A part begins with a line `=== path`. Once the next minor version has begun a file is never written
again: what stands in it is to go on working, with deprecation warnings at most.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.version import Version

import core
from builtin_plugins.commands.plugins.releases import minor
from builtin_plugins.commands.plugins.scaffold import WRITTEN, write_package

HERE: Final = Path(__file__).parent / "frozen"
EXAMPLES: Final = Path(__file__).parents[2] / "examples"
BEGIN: Final = "=== "


def releases() -> list[str]:
    """Return the releases whose plugins were kept."""
    return sorted(file.stem for file in HERE.glob("*.txt"))


def thaw(release: str, folder: Path) -> list[str]:
    """Write a release's plugins into a folder; return the names of their modules."""
    text = (HERE / f"{release}.txt").read_text()
    modules = []
    for part in text.split(f"\n{BEGIN}"):
        path, _, content = part.removeprefix(BEGIN).partition("\n")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
        if file.name == "plugin.py":
            modules.append(f"{file.parent.name}.plugin")
    return modules


def freeze() -> str:
    """Return the plugins of every kind and joint as they are written now, and the examples."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in WRITTEN:
            write_package(f"my_{kind}", kind, Path(folder, kind))
        found = dict(sorted([*_packages(Path(folder)), *_packages(EXAMPLES)]))
    return "".join(f"{BEGIN}{path}\n{text}" for path, text in found.items())


def _packages(root: Path) -> Iterator[tuple[str, str]]:
    for plugin in root.glob("*/engine_*/plugin.py"):
        for file in plugin.parent.glob("*.py"):
            yield f"{plugin.parent.name}/{file.name}", file.read_text().rstrip("\n") + "\n"


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    target = HERE / f"{minor(Version(core.__version__))}.txt"
    target.write_text(freeze())
    sys.stdout.write(f"{target}\n")
