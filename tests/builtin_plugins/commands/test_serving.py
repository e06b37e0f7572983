"""What `engine serve` gives to the frontend."""

from __future__ import annotations

import os
from typing import Any

import pytest

from builtin_plugins.commands.serve import serving
from core import AsyncLLM
from core.frontend.startup import load_from_kwargs


class Stopped(Exception):
    """Ends a start before anything is served."""


def test_prompt_threads_follow_affinity_and_quota_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the cores of the machine, which a container sees as well."""
    monkeypatch.setattr(os, "cpu_count", lambda: 256)
    monkeypatch.setattr(serving, "usable_cores", lambda: 6)
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

    with pytest.raises(Stopped):
        serving.serve(config, registry, None, AsyncLLM, checks=False, prepare=stop)
    assert found == [3]
