"""Every module imports alone, and what must start fast imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH_FREE = (
    "core.scheduler",
    "core.kv",
    "core.plugin",
    "core.config",
    "core.types",
    "core.step",
    "core.api",
    "core",
)

WITH_TORCH = ("core.api.planning", "core.api.worker")
"""Public modules for commands that plan memory and for runners' stages."""

IMPORT_EACH_IN_A_FORK = """
import gc, importlib, os, sys, traceback, warnings
import fastapi, transformers, torch  # paid once, before the forks
gc.freeze()
failed = []
for name in sys.stdin.read().split():
    child = os.fork()
    if child == 0:
        warnings.simplefilter("error")
        try:
            importlib.import_module(name)
        except BaseException:
            print(f"--- {name}\\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print("failed:", *failed)
"""

IMPORT_ALL = """
import importlib, sys, warnings
import fastapi, transformers, torch
warnings.simplefilter("error")
for name in sys.stdin.read().split():
    importlib.import_module(name)
"""

LIGHT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = {"torch", "transformers", "fastapi"} & set(sys.modules)
    if not name.startswith("core.scheduler"):  # it keeps what it knows of rows in columns
        heavy |= {"numpy"} & set(sys.modules)
    assert not heavy, f"importing {name} imported {heavy}"
"""

PLUGIN_MODULES = """
import importlib, sys, time
start = time.process_time()
import core.api, core.api.models, core.api.sampling, core.api.serving, core.api.telemetry
import core.model_spec.decoder
own = time.process_time() - start
for name in sys.argv[1:]:
    importlib.import_module(name)
print((time.process_time() - start - own) / own)
assert "torch" not in sys.modules, "a plugin module imports torch"
"""


def python(code: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def module_names() -> list[str]:
    """Return every module of the shipped packages."""
    names = []
    for top in (ROOT / "core", ROOT / "builtin_plugins", ROOT / "kernels" / "core_kernels"):
        for path in sorted(top.rglob("*.py")):
            parts = path.relative_to(top.parent).with_suffix("").parts
            if "template" not in parts:
                names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def builtin_plugin_modules() -> list[str]:
    return [
        point.module for point in distribution("core").entry_points.select(group="engine.plugins")
    ]


def parts_of(*tops: str) -> list[str]:
    return [name for name in module_names() if name.partition(".")[0] in tops]


@pytest.mark.slow
def test_every_module_imports():
    """Together, without a warning; that each does alone follows where no two import each other
    (test_no_circles).
    """
    python(IMPORT_ALL, stdin=" ".join(reversed(parts_of("core", "core_kernels"))))


@pytest.mark.slow
@pytest.mark.parametrize("tops", [("core", "core_kernels"), ("builtin_plugins",)], ids=" and ".join)
def test_every_module_imports_alone(tops):
    names = parts_of(*tops)
    assert names
    output = python(IMPORT_EACH_IN_A_FORK, stdin=" ".join(names))
    assert output.splitlines()[-1].split() == ["failed:"], output


@pytest.mark.parametrize("package", TORCH_FREE)
def test_light_modules_import_nothing_heavy(package):
    names = [
        name
        for name in module_names()
        if (name == package or name.startswith(f"{package}.")) and name not in WITH_TORCH
    ]
    python(LIGHT, *(names if package != "core" else ["core"]))


def test_all_plugin_modules_together_import_in_half_the_time_of_what_they_are_written_against():
    modules = builtin_plugin_modules()
    assert min(float(python(PLUGIN_MODULES, *modules)) for _ in range(3)) < 0.5


def test_promises_of_routes_import_no_web_framework():
    """Features import them at start-up, offline as well."""
    code = "import sys, builtin_plugins.routes.api; print('starlette' in sys.modules)"
    assert python(code).split() == ["False"]
