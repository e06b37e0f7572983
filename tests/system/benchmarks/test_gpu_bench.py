"""The benchmarks of GPUs run to their ends without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def last_lines(*arguments: str) -> list[str]:
    command = [sys.executable, *arguments, "--smoke"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()


@pytest.mark.slow
def test_toy_shapes_are_computed_and_nothing_is_timed() -> None:
    assert (
        last_lines("benchmarks/gpu/bench_kernels.py")[-1]
        == "decode, one long: computed, nothing is timed"
    )


@pytest.mark.slow
def test_every_workload_of_the_table_is_computed() -> None:
    heading, _, *rows = last_lines("benchmarks/gpu/roofline.py")
    assert heading == "| work | ms | limit, ms | share | target | comparison |"
    assert all("| computed |" in row for row in rows)
    assert {row.split()[1] for row in rows} == {"W1", "W2a", "W3", "W4", "W5", "W6"}
