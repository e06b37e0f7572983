"""The benchmark of GPUs runs to its end without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "bench_kernels.py"


@pytest.mark.slow
def test_toy_shapes_are_computed_and_nothing_is_timed() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--smoke"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "decode, one long: computed, nothing is timed"
