"""The API process takes at most three times the bytes that may be in flight."""

from __future__ import annotations

import pytest

from tests.system.attacks.body_memory import (
    FLAGS,
    MAX_FACTOR,
    api_process,
    cases,
    measure,
    memory_of,
)
from tests.system.attacks.server_under_test import start_server


@pytest.mark.slow
@pytest.mark.usefixtures("new_interpreters")
def test_bodies_that_arrive_at_once_take_three_times_their_limit_at_most() -> None:
    with start_server(*FLAGS) as server:
        idle_bytes = memory_of(api_process(server), "VmRSS")
        peaks = [measure(server, case, idle_bytes) for case in cases()]
    assert [str(peak) for peak in peaks if peak.factor > MAX_FACTOR] == []
    assert all(peak.statuses.keys() <= {"200", "400", "429", "503"} for peak in peaks)
