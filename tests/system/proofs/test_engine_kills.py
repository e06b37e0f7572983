"""Streams over HTTP are whole while engines of a server are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.proofs.engine_kills import run_kills


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_engines", "flags"), [(2, ()), (4, ()), (2, ("--api-server-count", "2"))]
)
def test_streams_are_whole_while_engines_are_killed(
    tmp_path: Path, num_engines: int, flags: tuple[str, ...]
) -> None:
    found = run_kills(tmp_path, num_engines, 64, 20, *flags)
    assert found.faults == []
    assert found.num_answers >= 64 * 4
