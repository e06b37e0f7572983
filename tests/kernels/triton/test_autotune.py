"""The fastest configuration of a kernel is found once per kind of device and cached on disk."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import triton
from core_kernels.triton import moe, quantized
from core_kernels.triton.autotune import (
    LAUNCH_CONFIGS,
    MAX_BUCKET_ROWS,
    Autotuner,
    LaunchConfig,
    row_bucket,
)
from core_kernels.triton.quantized import QuantizedOps

DEVICE = torch.device("cpu")
SLOW = LaunchConfig(64, 4, 3)
FAST = LaunchConfig(32, 4, 4)
NO_ROOM = LaunchConfig(128, 8, 3)
SECONDS = {SLOW: 3e-5, FAST: 2e-5, NO_ROOM: math.inf}


class Known:
    """A clock that knows what each choice takes."""

    def __init__(self, name: str | None = "A GPU, 80GB") -> None:
        self.name = name
        self.timed = 0
        self.launched = [SLOW]

    def device_name(self, device: torch.device) -> str | None:
        return self.name

    def seconds(self, device: torch.device, launch: Callable[[], object]) -> float:
        self.timed += 1
        launch()
        return SECONDS[self.launched[-1]]


def chosen(
    folder: Path, clock: Known, *shapes: int, tuned: Autotuner | None = None
) -> list[LaunchConfig]:
    """Return with what a kernel is launched for each shape; without `tuned` as by a process of its
    own.
    """
    tuned = tuned or Autotuner("kernel", list(SECONDS), clock, folder)
    found = []
    for shape in shapes:
        tuned.launch(DEVICE, (shape, "int4"), clock.launched.append)
        found.append(clock.launched[-1])
    return found


def test_autotuning_result_is_cached_on_disk(tmp_path: Path) -> None:
    clock = Known()
    assert chosen(tmp_path, clock, 1, 1, 1) == [FAST] * 3
    assert clock.timed == len(SECONDS)
    other = Known()
    assert chosen(tmp_path, other, 1) == [FAST]
    assert other.timed == 0


def test_autotuning_key_has_shape_device_and_triton_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Known()
    chosen(tmp_path, clock, 1, 2)
    chosen(tmp_path, clock_b := Known("B"), 1)
    monkeypatch.setattr(triton, "__version__", "0.0")
    chosen(tmp_path, later := Known(), 1)
    assert [each.timed for each in (clock, clock_b, later)] == [6, 3, 3]
    assert {file.parts[-3] for file in tmp_path.rglob("*.json")} == {"A-GPU-80GB", "B"}


def test_untimed_device_uses_the_first_config(tmp_path: Path) -> None:
    clock = Known(None)
    tuned = Autotuner("kernel", list(SECONDS), clock, tmp_path)
    assert chosen(tmp_path, clock, 1, tuned=tuned) == [SLOW]
    assert not list(tmp_path.iterdir())
    clock.name = "A GPU"  # as after a graph capture
    assert chosen(tmp_path, clock, 1, tuned=tuned) == [FAST]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"config": {"columns": 7, "warps": 4, "stages": 3}}',
        b'{"config": {"x": 1}}',
        b"\xff",
    ],
)
def test_corrupt_cache_file_is_logged_once_and_rewritten(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen(tmp_path, Known(), 1)
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert chosen(tmp_path, Known(), 1, 1) == [FAST, FAST]
    assert [record.message.partition(" ")[0] for record in caplog.records] == [str(file)]
    assert json.loads(file.read_text())["config"]["columns"] == FAST.columns


def test_unwritable_cache_folder_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "a file"
    folder.touch()
    with caplog.at_level(logging.WARNING):
        assert chosen(folder, Known(), 1, 2, 1) == [FAST] * 3
    warnings = [record.message for record in caplog.records if "cannot be cached" in record.message]
    assert len(warnings) == 1


def test_concurrent_autotuning_is_safe(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: chosen(tmp_path, Known(), *range(20)), range(4)))
    clock = Known()
    assert chosen(tmp_path, clock, *range(20)) == [FAST] * 20
    assert clock.timed == 0
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 20, (
        "no part of a file is left"
    )


def test_row_counts_share_a_config_by_power_of_two() -> None:
    assert [row_bucket(count) for count in (0, 1, 17, 1 << 20)] == [16, 16, 32, MAX_BUCKET_ROWS]


def test_launch_configs_give_equal_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ops = QuantizedOps(4, 32)
    x = torch.randn(3, 200)
    weight = ops.empty(130, 200, torch.float32)
    ops.pack(weight, 130, 0, torch.randn(130, 200))
    shares = torch.rand(3, 2)
    chosen_experts = torch.tensor([[0, 1], [1, 0], [1, 1]])
    given = (
        x,
        torch.randn(2, 2 * 70, 200) * 0.05,
        torch.randn(2, 200, 70) * 0.1,
        shares,
        chosen_experts,
    )
    found = []
    for choice in LAUNCH_CONFIGS:
        for module, name in ((quantized, "AUTOTUNE"), (moe, "AUTOTUNE_UP"), (moe, "AUTOTUNE_DOWN")):
            monkeypatch.setattr(module, name, Autotuner(name, [choice], Known(None), tmp_path))
        found.append((ops.linear(x, weight, 130), moe.moe(*given)))
    for pair in found[1:]:
        for ours, firsts in zip(pair, found[0], strict=True):
            torch.testing.assert_close(ours, firsts, atol=1e-4, rtol=1e-5)
