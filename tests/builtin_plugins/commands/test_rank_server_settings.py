"""Options of the supervisor of a server per rank set its probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builtin_plugins.commands.serve.rank_servers import RankServers
from core.config import EngineConfig
from core.config.sections import ParallelConfig


@pytest.mark.parametrize(
    ("option", "value", "setting"),
    [
        ("dp_supervisor_probe_interval_s", 0.5, "_interval_s"),
        ("dp_supervisor_probe_timeout_s", 0.25, "_timeout_s"),
        ("dp_supervisor_probe_failure_threshold", 7, "_max_failed"),
        ("data_parallel_supervisor_port", 9300, "_port"),
    ],
)
def test_option_changes_its_setting(option: str, value: Any, setting: str) -> None:
    parallel = ParallelConfig(data_parallel_size=2)
    plain = replace(EngineConfig(), parallel=parallel)
    changed = replace(EngineConfig(options={option: value}), parallel=parallel)
    assert getattr(RankServers(plain), setting) != value
    assert getattr(RankServers(changed), setting) == value
