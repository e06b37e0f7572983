"""Servers in control groups (cgroups) with limits: threads, planned memory, and the OOM killer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from core.testing.checkpoints import make_checkpoint
from tests.system.proofs.test_api_death import (
    BROKEN,
    GREEDY,
    Service,
    serving,
    streamed,
    wait_for,
)
from tests.timeouts import TIMEOUT_S

CGROUPS: Final = Path("/sys/fs/cgroup")
MIB: Final = 1 << 20
FILES: Final = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
}
"""File of each controller's limit, in version 1 and 2."""
REPORT: Final = """
from builtin_plugins.platforms.api import tightest_memory_limit, usable_cores
input()
print(usable_cores(), tightest_memory_limit().limit_bytes)
"""


@contextmanager
def limited_group(controller: str, limit: int) -> Iterator[Path]:
    """Make a group with one limit; skip the test where that is not permitted."""
    base = CGROUPS / controller
    folder = (base if base.is_dir() else CGROUPS) / f"engine-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"a control group cannot be made: {error}")

    def is_removed() -> bool:
        with suppress(OSError):  # its last process is still ending
            folder.rmdir()
        return not folder.exists()

    try:
        file = next((folder / name for name in FILES[controller] if (folder / name).exists()), None)
        if file is None:
            pytest.skip(f"control groups have no {controller} controller here")
        file.write_text(str(limit))
        yield folder
    finally:
        wait_for(is_removed)


def move(pid: int, group: Path) -> None:
    """Move a process into a group, which counts the memory that it takes from now on."""
    (group / "cgroup.procs").write_text(str(pid))


def num_oom_kills(group: Path) -> int:
    """Return how often the system killed a process of the group for its memory."""
    files = [group / "memory.oom_control", group / "memory.events"]
    text = next(file.read_text() for file in files if file.exists())
    counts = (line.split() for line in text.splitlines())
    return next(int(count[1]) for count in counts if count[0] == "oom_kill")


def test_threads_and_memory_follow_the_groups_of_a_process() -> None:
    command = [sys.executable, "-c", REPORT]
    limits = {"memory": 600 * MIB, "cpu": 50_000}  # microseconds of 100,000
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        ExitStack() as stack,
    ):
        groups = [
            stack.enter_context(limited_group(controller, limit))
            for controller, limit in limits.items()
        ]
        for group in groups:
            move(process.pid, group)
        found, _ = process.communicate("\n", timeout=TIMEOUT_S)
    assert found.split() == ["1", str(600 * MIB)]


@pytest.mark.slow
def test_streams_go_on_when_the_system_kills_an_engine_for_its_memory(tmp_path: Path) -> None:
    llama = str(make_checkpoint("LlamaForCausalLM", tmp_path / "llama"))

    async def main(service: Service, group: Path) -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=TIMEOUT_S) as client:
            expected = await asyncio.gather(*(streamed(client, i) for i in range(8)))
            move(service.engine(), group)
            i = 100
            while not num_oom_kills(group):  # until the KV cache has taken new pages
                assert None not in await asyncio.gather(
                    *(streamed(client, i + j) for j in range(8))
                )
                i += 8
            assert await asyncio.gather(*(streamed(client, i) for i in range(8))) == expected
        assert service.metric("engine_restarts_total") == 1
        assert "by SIGKILL, from outside or by the out-of-memory killer" in service.log()

    with (
        limited_group("memory", MIB) as group,
        serving(tmp_path, llama, "--dtype", "float32") as service,
    ):
        asyncio.run(main(service, group))


@pytest.mark.slow
def test_api_process_that_the_system_kills_for_its_memory_is_restarted_alone(
    tmp_path: Path,
) -> None:
    plugin = tmp_path / "greedy.py"
    plugin.write_text(GREEDY)
    with (
        limited_group("memory", 64 * MIB) as group,
        serving(tmp_path, "scripted:", "--plugins", str(plugin)) as service,
    ):
        engine = service.engine()
        move(service.api(), group)
        with pytest.raises(BROKEN):
            httpx.get(f"{service.url}/greedy", timeout=TIMEOUT_S)
        assert num_oom_kills(group) == 1
        wait_for(service.is_ready)
        assert service.engine() == engine
        assert service.metric("engine_server_restarts_total") == 1
