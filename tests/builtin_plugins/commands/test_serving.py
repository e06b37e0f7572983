"""What `engine serve` does around the server's life, and what frontends get from the machine."""

from __future__ import annotations

import gc
import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.commands.serve import serving
from builtin_plugins.commands.serve.serving import START_THRESHOLD, serve
from builtin_plugins.platforms import machine
from core import AsyncLLM
from core.frontend.startup import load_from_kwargs


class Stopped(Exception):
    """Ends a start before anything is served."""


@pytest.mark.parametrize("is_served", [True, False], ids=["served", "offline"])
def test_prompt_threads_follow_affinity_and_quota_of_the_container(
    monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    """Not the cores of the machine, which a container sees as well."""
    monkeypatch.setattr(os, "cpu_count", lambda: 256)
    monkeypatch.setattr(machine, "usable_cores", lambda: 6)
    config, registry = load_from_kwargs(
        {
            "model": "scripted:",
            "num_threads": 1,
            "log_level": "error",
            "disable_frontend_multiprocessing": True,
        }
    )
    found: list[int] = []

    def stop(engine: Any) -> None:
        found.append(engine._reader.num_threads)
        raise Stopped

    if is_served:
        with pytest.raises(Stopped):
            serving.serve(config, registry, None, AsyncLLM, checks=False, prepare=stop)
    else:
        engine = AsyncLLM.from_config(config, registry)
        with pytest.raises(Stopped):
            stop(engine)
        engine.shutdown()
    assert found == [3]


def test_garbage_is_collected_seldom_during_the_start_only() -> None:
    thresholds = []

    def start(config: Any, registry: Any, meanwhile: Any) -> Any:
        thresholds.append(gc.get_threshold())
        meanwhile()
        return SimpleNamespace(config=config, shutdown=lambda: None)

    def run() -> int:
        thresholds.append(gc.get_threshold())
        return 0

    registry: Any = SimpleNamespace(
        choose=lambda kind: "http",
        entries=lambda kind: [],
        load=lambda registered: lambda engine, config, groups: SimpleNamespace(run=run),
        blame=lambda registered: nullcontext(),
    )
    before = gc.get_threshold()
    frontend = SimpleNamespace(from_config=start)
    assert serve(SimpleNamespace(options={}), registry, None, frontend, checks=True) == 0
    assert thresholds == [(START_THRESHOLD, *before[1:]), before]
