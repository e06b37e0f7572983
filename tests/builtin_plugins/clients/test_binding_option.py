"""`--data-parallel-cpu-binding none` leaves an engine on all cores, as a launcher of a cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from builtin_plugins.clients import binding
from core.config import EngineConfig
from core.config.sections import ParallelConfig


@pytest.mark.parametrize(
    ("value", "launcher", "binds"),
    [("auto", "local", True), ("none", "local", False), ("auto", "ray", False)],
)
def test_option_turns_the_binding_off(
    value: str, launcher: str, binds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[Any] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(cores))
    monkeypatch.setattr(binding, "share_of_cores", lambda *arguments: {0})
    options = {"data_parallel_rank": 0, "data_parallel_cpu_binding": value, "launcher": launcher}
    config = replace(EngineConfig(options=options), parallel=ParallelConfig(data_parallel_size=2))
    monkeypatch.setattr(binding, "ranks_here", lambda config: 2)
    monkeypatch.setattr(binding, "place_here", lambda config, rank: 0)
    binding.bind_to_share(config)
    assert bound == ([{0}] if binds else [])
