"""Every kernel is also what Triton's compiler takes, for a GPU that need not be there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import core_kernels.triton
import pytest

SOURCES = Path(core_kernels.triton.__file__).parent
ROOT = Path(__file__).parents[3]


def run_compiled(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module with Triton's compiler instead of its interpreter."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_kernels_compile_and_fit_shared_memory() -> None:
    done = run_compiled("tests.kernels.triton.gpu_compilation")
    assert done.returncode == 0, done.stderr
    compiled = {line.split()[0] for line in done.stdout.splitlines()}
    written = {
        name
        for source in SOURCES.glob("*.py")
        for name in re.findall(r"@triton\.jit\(?.*\)?\ndef (_\w+)", source.read_text())
    }
    called = {
        name
        for source in SOURCES.glob("*.py")
        for name in re.findall(r"(?<!\.)\b(_\w+)\[", source.read_text())
    }
    assert compiled == written & called


@pytest.mark.slow
def test_lengths_do_not_specialize_kernels() -> None:
    """A server that meets a length for the first time must not wait for a compiler."""
    done = run_compiled("tests.kernels.triton.specializations")
    assert done.returncode == 0, done.stderr
    counts = {
        name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())
    }
    tiles = counts.pop("_attend")
    assert tiles <= 2, "of few queries a sequence, and of many"
    assert len(counts) > 10
    assert {name: count for name, count in counts.items() if count > 1} == {}
