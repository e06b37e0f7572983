"""Automatic decisions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from core.engine.resolve import resolve
from core.errors import ConfigError
from core.frontend.startup import load_from_kwargs

PLATFORM = """
from core.api import Entry, hookimpl
from builtin_plugins.platforms.cpu.platform import CpuPlatform

class Overlapping(CpuPlatform):
    name = "overlapping"
    overlaps = True
    mixed_prefill_tokens = 0

@hookimpl
def engine_platforms():
    return [Entry("overlapping", Overlapping, "a device that overlaps with the host", priority=100)]
"""


@pytest.mark.parametrize(
    ("device", "chosen", "overlaps"),
    [
        ("cpu", None, False),
        ("overlapping", None, True),
        ("cpu", True, True),
        ("overlapping", False, False),
    ],
)
def test_async_scheduling_follows_the_platform_or_the_user(
    device: str,
    chosen: bool | None,
    overlaps: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "overlapping.py"
    file.write_text(PLATFORM)
    kwargs: dict[str, Any] = {"model": "scripted:", "plugins": [f"+{file}"], "device": device}
    caplog.set_level(logging.INFO, "core.engine.resolve")
    resolved = resolve(*load_from_kwargs({**kwargs, "async_scheduling": chosen}), serving=False)
    assert resolved.config.scheduler.async_scheduling is overlaps
    expected = f"asynchronous scheduling is {'on' if overlaps else 'off'}: the platform {device}"
    assert (expected in caplog.text) == (chosen is None)


@pytest.mark.parametrize(("chosen", "expected"), [(None, True), (False, False)])
def test_async_scheduling_is_the_default_of_pipeline_stages(
    chosen: bool | None, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The stages compute in other processes while the host plans."""
    caplog.set_level(logging.INFO, "core.engine.resolve")
    kwargs = {"model": "demo:", "pipeline_parallel_size": 2, "async_scheduling": chosen}
    resolved = resolve(*load_from_kwargs(kwargs), serving=False)
    assert resolved.config.scheduler.async_scheduling is expected
    assert ("is on: the pipeline overlaps" in caplog.text) == (chosen is None)


@pytest.mark.parametrize(
    ("device", "chosen", "serving", "limit"),
    [
        ("cpu", None, True, 512),
        ("cpu", None, False, 0),
        ("cpu", 0, True, 0),
        ("cpu", 64, False, 64),
        ("overlapping", None, True, 0),
    ],
)
def test_mixed_prefill_limit_follows_the_platform_or_the_user(
    device: str, chosen: int | None, serving: bool, limit: int, tmp_path: Path
) -> None:
    file = tmp_path / "overlapping.py"
    file.write_text(PLATFORM)
    kwargs: dict[str, Any] = {"model": "scripted:", "plugins": [f"+{file}"], "device": device}
    resolved = resolve(
        *load_from_kwargs({**kwargs, "max_mixed_prefill_tokens": chosen}), serving=serving
    )
    assert resolved.config.scheduler.max_mixed_prefill_tokens == limit


def test_too_many_row_tokens_are_refused() -> None:
    kwargs = {"model": "scripted:", "max_num_seqs": 16_384, "scripted_max_model_len": 1 << 20}
    with pytest.raises(
        ConfigError,
        match=r"--max-num-seqs 16384 requests of --max-model-len 1048576 tokens are more",
    ):
        resolve(*load_from_kwargs(kwargs), serving=False)
