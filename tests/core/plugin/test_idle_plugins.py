"""Installed but unused plugins cost almost no startup time."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 50
MAX_S = 0.05
PLUGIN = """
from core.api import Entry, hookimpl

@hookimpl
def engine_tokenizers():
    return [Entry("NAME", "NAME.tokenizer:Tokenizer", "idle")]
"""
STARTS = {
    "plugins list": (
        "from builtin_plugins.commands.plugins.status import plugin_statuses; "
        "work = lambda: plugin_statuses([])"
    ),
    "a start": "from core.plugin import load_plan, make_plan; work = lambda: "
    "load_plan(make_plan())",
}


def install(folder: Path) -> None:
    for i in range(COUNT):
        name = f"engine_idle_{i}"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        info.joinpath("entry_points.txt").write_text(f"[engine.plugins]\n{name} = {name}.plugin\n")
        package = folder / name
        package.mkdir()
        package.joinpath("__init__.py").write_text("")
        package.joinpath("plugin.py").write_text(PLUGIN.replace("NAME", name))
    compileall.compile_dir(folder, quiet=1)  # as an installer does


def took_s(code: str, path: str) -> float:
    """Return the CPU time of the work in seconds, the minimum of several runs."""
    timed = (
        f"import time\n{code}\n"
        "start = time.process_time(); work(); print(time.process_time() - start)"
    )
    runs = (
        subprocess.run(
            [sys.executable, "-c", timed],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(5)
    )
    return min(float(run.stdout) for run in runs)


@pytest.mark.slow
@pytest.mark.parametrize("what", STARTS)
def test_fifty_idle_plugins_take_less_than_50_ms(what: str, tmp_path: Path) -> None:
    install(tmp_path)
    assert took_s(STARTS[what], str(tmp_path)) - took_s(STARTS[what], "") <= MAX_S
