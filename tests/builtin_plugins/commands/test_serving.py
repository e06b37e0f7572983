"""What frontends get from the machine, served and offline."""

from __future__ import annotations

import os
from typing import Any

import pytest

from builtin_plugins.commands.serve import serving
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
