"""Streams of every feature end with the undisturbed tokens while processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.proofs.mixed_streams import VICTIMS, run_kills


@pytest.mark.slow  # each victim has a quick test of its own kind
@pytest.mark.parametrize(
    ("victim", "count"),
    [("grammar", 2), *((victim, 40) for victim in VICTIMS)],
)
def test_mixed_streams_survive_kills(victim: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    kills = run_kills(tmp_path, victim, count)
    assert kills.faults == []
    assert kills.num_killed == count
    assert kills.num_answers > count
