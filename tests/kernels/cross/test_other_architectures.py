"""The library built for another architecture computes what it computes here, over a grid of shapes.

The compiler and the emulator are Debian's packages g++-aarch64-linux-gnu and qemu-user.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from core_kernels import build
from core_kernels.library import load_library

GRID: Final = Path(__file__).parent / "grid.cpp"
TOLERANCES: Final = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}
"""By type: of the largest number of a result. Multiplications and additions may be fused or not."""
ROUNDED_TOLERANCE: Final = 2e-3
"""Where rows are rounded to eight bits, of which one may then differ."""
LEAST_RESULTS: Final = 1000

Results = list[tuple[str, str, np.ndarray]]


def compile_grid(compiler: str, library: Path, target: Path) -> None:
    folder = library.parent
    name = library.name
    command = [compiler, "-O1", "-std=c++17", "-Wno-psabi", f"-I{build.FOLDER}", str(GRID)]
    command += [f"-L{folder}", f"-l:{name}", "-pthread", "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def results(command: list[str]) -> Results:
    """Return (name, type, numbers) of everything that the grid computes."""
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: Results = []
    data = done.stdout
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, dtype, count = data[at:end].decode().split()
        at = end + 1 + 4 * int(count)
        found.append((name, dtype, np.frombuffer(data[end + 1 : at], np.float32)))
    assert len(found) > LEAST_RESULTS
    return found


@pytest.fixture
def here(tmp_path: Path) -> Results:
    """Return the results of this machine's generic variant."""
    library = load_library()
    compiler = build.find_compiler()
    if library is None or compiler is None or "generic" not in library.variants:
        pytest.skip("no C++ library with the generic variant, or no compiler, on this machine")
    path = Path(library._name)
    compile_grid(compiler, path, tmp_path / "grid")
    return results(["env", f"LD_LIBRARY_PATH={path.parent}", str(tmp_path / "grid")])


@pytest.mark.slow
def test_aarch64_library_computes_the_same_grid(
    here: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("aarch64-linux-gnu-g++")
    emulator = shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no aarch64-linux-gnu-g++ (g++-aarch64-linux-gnu) or qemu-aarch64 (qemu-user)")
    monkeypatch.setattr(build, "find_compiler", lambda: compiler)
    library = tmp_path / "aarch64" / build.LIBRARY_NAME
    build.compile_library(library, ["generic"], tmp_path / "objects")
    grid = tmp_path / "aarch64" / "grid"
    compile_grid(compiler, library, grid)
    system = "/usr/aarch64-linux-gnu"
    paths = f"LD_LIBRARY_PATH={library.parent}"
    there = results([emulator, "-L", system, "-E", paths, str(grid)])
    assert [each[:2] for each in there] == [each[:2] for each in here]
    wrong = []
    for (name, dtype, found), (_, _, expected) in zip(there, here, strict=True):
        assert np.isfinite(expected).all(), f"{name} {dtype}"
        size = max(1.0, float(np.abs(expected).max()))
        off = float(np.abs(found - expected).max()) / size
        allowed = max(TOLERANCES[dtype], ROUNDED_TOLERANCE if "_x8_" in name else 0)
        if not off <= allowed:
            wrong.append(f"{name} {dtype}: off by {off:.1e}")
    assert wrong == []
