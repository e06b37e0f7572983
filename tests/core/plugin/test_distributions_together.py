"""All distributions of `plugins/`, installed together, start and serve."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.timeouts import TIMEOUT_S

PLUGINS = Path(__file__).parents[3] / "plugins"
NO_TESTS = 5
"""Status of pytest where the packages of all tests are missing."""
LOAD = """
from core.plugin import load_plan, make_plan
from core.config.fields import FieldTable
registry = load_plan(make_plan())
FieldTable(registry.options())
print(*sorted(ref.name for ref in registry.plan.plugins if not ref.builtin))
print(registry.choose("quant_methods", "bitsandbytes", {}).plugin.name)
"""
GENERATE = """
from core import LLM, SamplingParams
with LLM("scripted:", max_model_len=64) as llm:
    print(llm.generate("hello", SamplingParams(max_tokens=4), use_tqdm=False)[0].finished)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process in which every distribution of `plugins/` is installed."""
    site = tmp_path_factory.mktemp("site")
    folders = sorted(each.parent for each in PLUGINS.glob("*/pyproject.toml"))
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        (info / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
                for group, entries in project["entry-points"].items()
            )
        )
    # what a plugin needs may be missing here; the engine then says so where the entry is chosen
    stand_in = site / "bitsandbytes-0.99.dist-info"
    stand_in.mkdir()
    (stand_in / "METADATA").write_text("Metadata-Version: 2.1\nName: bitsandbytes\nVersion: 0.99\n")
    path = [str(site), *map(str, folders), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def run(code: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_distributions_load_together(environment: dict[str, str]) -> None:
    names, chosen = run(LOAD, environment)
    written = {
        name
        for each in PLUGINS.glob("*/pyproject.toml")
        for name in tomllib.loads(each.read_text())["project"]["entry-points"]["engine.plugins"]
    }
    assert set(names.split()) >= written
    assert chosen == "bitsandbytes", "it replaces the builtin method of its name"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(each.parent.name for each in PLUGINS.glob("*/*.toml")))
def test_suite_passes_with_all_distributions_installed(
    name: str, environment: dict[str, str]
) -> None:
    suite = [str(PLUGINS / name), "-n", "0", "-q", "-m", "not slow and not bench and not gpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *suite],
        cwd=PLUGINS.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, NO_TESTS), done.stdout


@pytest.mark.slow
def test_engine_with_all_distributions_serves(environment: dict[str, str]) -> None:
    assert run(GENERATE, environment)[-1] == "True"
