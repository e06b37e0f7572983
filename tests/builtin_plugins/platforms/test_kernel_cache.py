"""The folder of compiled kernels is that of the option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import triton
from core_kernels.triton.autotune import Autotuner

from builtin_plugins.platforms.cpu.platform import CpuPlatform
from core.config import EngineConfig
from core.errors import ConfigError
from tests.builtin_plugins.platforms.fake_gpu import FakeGpu


def with_folder(folder: Path | str) -> EngineConfig:
    return replace(EngineConfig(), options={"kernel_cache_dir": str(folder)})


@pytest.fixture(autouse=True)
def own_cache() -> Iterator[None]:
    """Restore Triton's own folder."""
    with triton.knobs.cache.scope():
        yield


def test_kernels_and_launches_are_cached_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    FakeGpu().start(replace(EngineConfig(), options={"kernel_cache_dir": str(folder)}))
    assert triton.runtime.cache.FileCacheManager("abc").cache_dir == str(folder / "abc")
    assert Autotuner("experts")._file("card", (1, 2)).is_relative_to(folder)


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"--kernel-cache-dir: got .*file/kernels; expected a fol"
    ):
        FakeGpu().start(with_folder(tmp_path / "file" / "kernels"))


def test_folder_has_no_effect_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match=r"--kernel-cache-dir: got x; expected none"):
        CpuPlatform().start(with_folder("x"))
