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


@pytest.mark.slow
def test_kernels_compile_and_fit_shared_memory() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = str(Path(__file__).with_name("gpu_compilation.py"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], env=environment, capture_output=True, text=True
    )
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
        for name in re.findall(r"\b(_\w+)\[", source.read_text())
    }
    assert compiled == written & called


@pytest.mark.slow
def test_lengths_do_not_specialize_kernels() -> None:
    """A server that meets a length for the first time must not wait for a compiler."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = str(Path(__file__).with_name("specializations.py"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    counts = {
        name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())
    }
    tiles = counts.pop("_attend")
    assert tiles <= 2, "of few queries a sequence, and of many"
    assert len(counts) > 10
    assert {name: count for name, count in counts.items() if count > 1} == {}
