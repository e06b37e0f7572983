"""The library built for another architecture computes what it computes here, over a grid of shapes,
in each of its variants.

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


CPUS: Final = {"cortex-a72": "generic", "neoverse-n1": "neon_dotprod", "max": "neon_bf16"}
"""The best variant of some emulated processors."""
COMPILER: Final = build.find_compiler("aarch64") if build.ARCHITECTURE != "aarch64" else None
EMULATOR: Final = shutil.which("qemu-aarch64")
SYSTEM: Final = "/usr/aarch64-linux-gnu"


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
    return results(["env", f"LD_LIBRARY_PATH={path.parent}", str(tmp_path / "grid"), "generic"])


def differences(found: Results, expected: Results) -> list[str]:
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    wrong = []
    for (name, dtype, own), (_, _, other) in zip(found, expected, strict=True):
        assert np.isfinite(other).all(), f"{name} {dtype}"
        size = max(1.0, float(np.abs(other).max()))
        off = float(np.abs(own - other).max()) / size
        allowed = max(TOLERANCES[dtype], ROUNDED_TOLERANCE if "_x8_" in name else 0)
        if not off <= allowed:
            wrong.append(f"{name} {dtype}: off by {off:.1e}")
    return wrong


@pytest.mark.slow
@pytest.mark.skipif(
    COMPILER is None or EMULATOR is None,
    reason="no aarch64-linux-gnu-g++ (g++-aarch64-linux-gnu) or qemu-aarch64 (qemu-user)",
)
def test_aarch64_variants_compute_the_same_grid(here: Results, tmp_path: Path) -> None:
    assert COMPILER is not None
    assert EMULATOR is not None
    library = tmp_path / "aarch64" / build.LIBRARY_NAME
    build.compile_library(library, build.ARM, build.OBJECTS, "aarch64")
    grid = library.with_name("grid")
    compile_grid(COMPILER, library, grid)

    def command(*arguments: str) -> list[str]:
        return [EMULATOR, "-L", SYSTEM, "-E", f"LD_LIBRARY_PATH={library.parent}", *arguments]

    best = {
        cpu: subprocess.run(
            command("-cpu", cpu, str(grid)), capture_output=True, text=True, check=True
        ).stdout.strip()
        for cpu in CPUS
    }
    assert best == CPUS
    wrong = {name: differences(results(command(str(grid), name)), here) for name in build.ARM}
    assert wrong == {name: [] for name in build.ARM}
