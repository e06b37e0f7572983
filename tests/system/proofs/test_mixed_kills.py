"""Streams of every feature end with the undisturbed tokens while processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.proofs.mixed_streams import VICTIMS, run_kills


@pytest.mark.parametrize(
    ("victim", "count"),
    [
        ("grammar", 2),
        *(pytest.param(victim, 40, marks=pytest.mark.slow) for victim in VICTIMS),
    ],
)
def test_mixed_streams_survive_kills(victim: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    kills = run_kills(tmp_path, victim, count)
    assert kills.faults == []
    assert kills.num_killed == count
    assert kills.num_answers > count
