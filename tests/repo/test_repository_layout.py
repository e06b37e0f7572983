"""The promises about size, metadata and wording that the repository makes."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

import pytest
from core_kernels import build

ROOT = Path(__file__).parents[2]
LIBRARY_AND_KIT = ("models", "model_spec", "testing")
"""Rooms of `core/` that are no kernel: model library, model descriptions, author's kit."""
FRONT_DOORS = ("__init__.py", "__main__.py", "errors.py", "logs.py", "kernel_plugin.py")
FRONT_DOORS += ("log_pipe.py", "option_files.py", "vllm_api.py")
"""Files directly under `core/`, besides `step.py`, which counts as kernel."""
KERNEL_LINES = 17_000
FRONT_DOOR_LINES = 939
MODELS_BUDGET = 8000
"""Lines of all text architectures."""
TOWERS_BUDGET = 1420
"""Lines of what reads images: 60 architectures."""
LINES_PER_ARCHITECTURE = 40
FILE_LIMIT = 500
FORBIDDEN = re.compile(r"/(?:root|home|Users)/\w|index-url|\bTODO\b|\bFIXME\b|\bXXX\b|\bHACK\b")


def tracked(*patterns: str) -> list[Path]:
    """Return the repository's files, those not yet committed included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_the_kernel_stays_small():
    """Every file of `core/` counts, wherever it stands, but library and kit."""
    core = ROOT / "core"
    lengths = {
        path.relative_to(core).parts: len(path.read_text().splitlines())
        for path in core.rglob("*.py")
        if path.relative_to(core).parts[0] not in LIBRARY_AND_KIT
    }
    doors = [lengths.pop((name,)) for name in FRONT_DOORS]
    assert sum(lengths.values()) <= KERNEL_LINES
    assert sum(doors) <= FRONT_DOOR_LINES


def test_an_architecture_is_a_page_of_facts():
    folder = ROOT / "builtin_plugins" / "models"
    lengths = {path: len(path.read_text().splitlines()) for path in folder.rglob("*.py")}
    tower_files = [path for path in lengths if "vision" in path.relative_to(folder).parts]
    towers = sum(lengths[path] for path in tower_files)
    assert sum(lengths.values()) - towers < MODELS_BUDGET
    assert towers < TOWERS_BUDGET
    # A file's lines are those of the architectures it returns; a family is a row of calls of
    # `Entry` in one list.
    counts = {path: len(re.findall(r"\bEntry\(", path.read_text())) for path in lengths}
    shares = [lengths[path] / count for path, count in counts.items() for _ in range(count)]
    assert statistics.median(shares) <= LINES_PER_ARCHITECTURE


def test_no_file_of_the_packages_is_long():
    packages = (ROOT / "core", ROOT / "builtin_plugins", ROOT / "kernels")
    files = [
        p for top in packages for suffix in ("*.py", "*.cpp", "*.h") for p in top.rglob(suffix)
    ]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert {name: count for name, count in lengths.items() if count > FILE_LIMIT} == {}


def test_core_names_no_builtin_module():
    """import-linter sees neither imports for annotations nor lazy names in strings."""
    pattern = re.compile(r"""(from|import) builtin_plugins|["']builtin_plugins\.""")
    files = (ROOT / "core").rglob("*.py")
    assert [str(p.relative_to(ROOT)) for p in files if pattern.search(p.read_text())] == []


def test_kernels_is_no_package():
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert not (ROOT / "plugins" / "__init__.py").exists()


def test_entry_points_are_sorted_and_installed_as_written():
    text = (ROOT / "pyproject.toml").read_text()
    written = tomllib.loads(text)["project"]["entry-points"]["engine.plugins"]
    assert list(written) == sorted(written)
    installed = {
        p.name: p.value for p in distribution("core").entry_points.select(group="engine.plugins")
    }
    assert installed == written, "the installed metadata is stale: run `make setup`"


def test_every_builtin_entry_point_has_its_module():
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "engine.plugins"
    ]
    missing = [
        module
        for module in (target.partition(":")[0] for target in written.values())
        if not (path := ROOT / module.replace(".", "/")).is_dir()
        and not path.with_suffix(".py").is_file()
    ]
    assert missing == []


def test_nothing_of_a_build_machine_and_nothing_unfinished_is_written():
    suffixes = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cpp", ".h", ".cfg", ".in", ""}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked()
        if path.suffix in suffixes and path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


def test_pins_name_no_local_build():
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert [
        line for line in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line)
    ] == []
    assert pins == sorted(pins, key=str.lower)


def test_every_changelog_fragment_says_its_type():
    types = {
        "feature",
        "fix",
        "performance",
        "plugin-api",
        "deprecation",
        "removal",
    }
    fragments = [p for p in (ROOT / "changelog.d").glob("*.md") if p.name != "README.md"]
    assert [
        p.name for p in fragments if p.name.count(".") != 2 or p.name.split(".")[1] not in types
    ] == []


def build_wheel(
    folder: Path, environment: Mapping[str, str], *options: str, objects: Path | None = None
) -> zipfile.ZipFile:
    """Build the wheel of the tracked files; compiled files may be those of another folder."""
    copy = folder / "source"
    for path in tracked():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    if objects is not None:
        objects.mkdir(parents=True, exist_ok=True)
        (copy / "build").mkdir()
        (copy / "build" / "kernels").symlink_to(objects)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        *options,
        str(copy),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


def check_wheel(wheel: zipfile.ZipFile, *, has_library: bool) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {
        "core",
        "builtin_plugins",
        "core_kernels",
        "core-0.1.0.dist-info",
    }
    assert "builtin_plugins/commands/plugins/template/package/pyproject.toml" in names
    if has_library:
        assert "core_kernels/libcore_kernels.so" in names
        file = Path(str(wheel.filename)).name
        assert file.startswith("core-0.1.0-py3-none-")
        assert not file.endswith("-any.whl")


def test_wheel_holds_the_packages_and_the_linked_library(tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("c++", "g++"):  # writes its arguments to what it should make
        compiler = commands / name
        compiler.write_text(
            '#!/bin/sh\nfor last; do :; done\ncase $last in *.o|*.so) echo "$@" > "$last";; esac\n'
        )
        compiler.chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    with build_wheel(tmp_path, environment) as wheel:
        check_wheel(wheel, has_library=True)
        linked = wheel.read("core_kernels/libcore_kernels.so").decode().split()
    parts = {Path(part).name.split(".")[0] for part in linked if part.endswith(".o")}
    assert {"dispatch", "linear_generic"} <= parts


VARIANTS_OF_INSTALLED = """
import core_kernels
from core_kernels.build import FOLDER, LIBRARY_NAME, VARIANTS
from core_kernels.library import open_library

library, failure = open_library(FOLDER / LIBRARY_NAME)
assert library is not None, failure
assert set(library.variants) == set(VARIANTS)
print(core_kernels.__file__)
"""


@pytest.mark.slow
def test_installed_wheel_has_every_variant_of_the_kernels(tmp_path):
    with build_wheel(tmp_path, os.environ, objects=build.OBJECTS) as wheel:
        check_wheel(wheel, has_library=build.find_compiler() is not None)
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    command += [str(site), str(wheel.filename)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    done = subprocess.run(
        [sys.executable, "-c", VARIANTS_OF_INSTALLED],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).is_relative_to(site)


@pytest.mark.slow
@pytest.mark.skipif(
    build.ARCHITECTURE == "aarch64" or build.find_compiler("aarch64") is None,
    reason="no aarch64-linux-gnu-g++ (package g++-aarch64-linux-gnu)",
)
def test_wheel_for_aarch64_has_every_variant_of_the_kernels(tmp_path):
    option = "-C--build-option=--plat-name=linux_aarch64"
    with build_wheel(tmp_path, os.environ, option, objects=build.OBJECTS) as wheel:
        check_wheel(wheel, has_library=True)
        library = wheel.read("core_kernels/libcore_kernels.so")
    assert Path(str(wheel.filename)).name.endswith("-linux_aarch64.whl")
    assert int.from_bytes(library[18:20], "little") == 183  # EM_AARCH64
    assert [name for name in build.ARM if f"{name}\0".encode() not in library] == []
