"""Automatic decisions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from core.engine.front import load_from_kwargs
from core.engine.resolve import resolve
from core.errors import ConfigError

PLATFORM = """
from core.api import Entry, hookimpl
from builtin_plugins.platforms.cpu.platform import CpuPlatform

class Beside(CpuPlatform):
    name = "beside"
    overlaps = True
    mixed_prefill_tokens = 0

@hookimpl
def engine_platforms():
    return [Entry("beside", Beside, "a device that computes beside the host", priority=100)]
"""


@pytest.mark.parametrize(
    ("device", "asked", "ahead"),
    [("cpu", None, False), ("beside", None, True), ("cpu", True, True), ("beside", False, False)],
)
def test_steps_are_scheduled_ahead_where_the_platform_gains_by_it_or_the_user_says_so(
    device: str, asked: bool | None, ahead: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "beside.py"
    file.write_text(PLATFORM)
    kwargs: dict[str, Any] = {"model": "scripted:", "plugins": [f"+{file}"], "device": device}
    caplog.set_level(logging.INFO, "core.engine.resolve")
    resolved = resolve(*load_from_kwargs({**kwargs, "async_scheduling": asked}), serving=False)
    assert resolved.config.scheduler.async_scheduling is ahead
    said = f"scheduling ahead is {'on' if ahead else 'off'}: the platform {device}"
    assert (said in caplog.text) == (asked is None)


@pytest.mark.parametrize(
    ("device", "asked", "serving", "most"),
    [
        ("cpu", None, True, 512),
        ("cpu", None, False, 0),
        ("cpu", 0, True, 0),
        ("cpu", 64, False, 64),
        ("beside", None, True, 0),
    ],
)
def test_prompts_beside_streams_are_cut_where_a_slow_platform_serves_or_the_user_says_so(
    device: str, asked: int | None, serving: bool, most: int, tmp_path: Path
) -> None:
    file = tmp_path / "beside.py"
    file.write_text(PLATFORM)
    kwargs: dict[str, Any] = {"model": "scripted:", "plugins": [f"+{file}"], "device": device}
    resolved = resolve(
        *load_from_kwargs({**kwargs, "max_mixed_prefill_tokens": asked}), serving=serving
    )
    assert resolved.config.scheduler.max_mixed_prefill_tokens == most


def test_places_for_more_tokens_than_any_machine_has_are_refused() -> None:
    kwargs = {"model": "scripted:", "max_num_seqs": 16_384, "scripted_max_model_len": 1 << 20}
    with pytest.raises(
        ConfigError,
        match=r"--max-num-seqs 16384 requests of --max-model-len 1048576 tokens are more",
    ):
        resolve(*load_from_kwargs(kwargs), serving=False)
