"""Limits of control groups (cgroups), read from made-up and from real system files."""

from __future__ import annotations

from pathlib import Path

import pytest

from builtin_plugins.platforms.cgroup import (
    MemoryLimit,
    cpu_quota,
    memory_limit_bytes,
    oom_kill_count,
    tightest_memory_limit,
)
from builtin_plugins.platforms.cpu import platform as cpu
from builtin_plugins.platforms.machine import usable_cores

GIB = 1 << 30
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"
V1_NO_LIMIT = "9223372036854771712"


def make_root(folder: Path, **files: str) -> Path:
    """Return a root folder with files under `/sys/fs/cgroup`: `a__b_dot_c` is `a/b.c`."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(MEMINFO)
    for name, text in files.items():
        file = folder / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return folder


def set_group(root: Path, *lines: str) -> None:
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))


def test_machine_without_limits_has_its_whole_memory(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    assert cpu.free_memory_bytes(root) == 8 * GIB
    assert cpu.all_memory_bytes(root) == 16 * GIB
    assert (cpu_quota(root), memory_limit_bytes(root), tightest_memory_limit(root)) == (None,) * 3


@pytest.mark.parametrize(
    "files",
    [
        {"memory_dot_max": "max", "memory_dot_current": "1", "cpu_dot_max": "max 100000"},
        {
            "memory__memory_dot_limit_in_bytes": V1_NO_LIMIT,
            "memory__memory_dot_usage_in_bytes": "1",
            "cpu__cpu_dot_cfs_quota_us": "-1",
            "cpu__cpu_dot_cfs_period_us": "100000",
        },
    ],
    ids=["v2", "v1"],
)
def test_groups_without_a_limit_change_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    root = make_root(tmp_path, **files)
    set_group(root, "3:memory:/", "2:cpu,cpuacct:/", "0::/")
    assert cpu.free_memory_bytes(root) == 8 * GIB
    assert cpu.all_memory_bytes(root) == 16 * GIB
    assert cpu_quota(root) is None


def test_container_limit_reduces_memory_and_cores(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        memory_dot_max=str(3 * GIB),
        memory_dot_current=str(GIB),
        cpu_dot_max="50000 100000",
    )
    assert cpu.free_memory_bytes(root) == 2 * GIB
    assert cpu.all_memory_bytes(root) == 3 * GIB
    assert cpu_quota(root) == 0.5
    assert usable_cores(root) == 1


def test_version_1_limits_reduce_memory_and_cores(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        memory__memory_dot_limit_in_bytes=str(3 * GIB),
        memory__memory_dot_usage_in_bytes=str(GIB),
        cpu__cpu_dot_cfs_quota_us="150000",
        cpu__cpu_dot_cfs_period_us="100000",
    )
    # Docker with version 1: the path is that of the host, the container's own group is the root.
    set_group(root, "5:memory:/docker/abc", "4:cpu,cpuacct:/docker/abc", "0::/system.slice")
    assert cpu.free_memory_bytes(root) == 2 * GIB
    assert cpu.all_memory_bytes(root) == 3 * GIB
    assert cpu_quota(root) == 1.5
    assert usable_cores(root) == min(2, usable_cores(make_root(tmp_path / "other")))


def test_smallest_limit_of_the_ancestors_counts(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        kube__memory_dot_max=str(4 * GIB),
        kube__memory_dot_current=str(3 * GIB),
        kube__cpu_dot_max="100000 100000",
        kube__pod__memory_dot_max=str(2 * GIB),
        kube__pod__memory_dot_current=str(GIB // 2),
        kube__pod__engine__memory_dot_max="max",
        kube__pod__engine__cpu_dot_max="300000 100000",
        other__memory_dot_max="5",
    )
    set_group(root, "0::/kube/pod/engine")
    assert memory_limit_bytes(root) == 2 * GIB
    assert tightest_memory_limit(root) == MemoryLimit(4 * GIB, 3 * GIB)
    assert cpu_quota(root) == 1.0


def test_file_pages_that_can_be_dropped_are_free_memory(tmp_path: Path) -> None:
    """A downloaded model fills the page cache up to the limit, and can still be loaded."""
    root = make_root(
        tmp_path,
        memory_dot_max=str(3 * GIB),
        memory_dot_current=str(3 * GIB - 1),
        memory_dot_stat=f"anon {GIB}\ninactive_file {2 * GIB - 1}\nactive_file 0",
    )
    assert cpu.free_memory_bytes(root) == 2 * GIB


@pytest.mark.parametrize("path", ["/../../other", "/gone", ""])
def test_group_that_cannot_be_seen_is_that_of_the_root(tmp_path: Path, path: str) -> None:
    root = make_root(tmp_path, memory_dot_max=str(GIB), memory_dot_current="0")
    (tmp_path / "sys/fs/other").mkdir()
    (tmp_path / "sys/fs/other/memory.max").write_text("5\n")
    set_group(root, f"0::{path}")
    assert memory_limit_bytes(root) == GIB


@pytest.mark.parametrize("text", ["", "no number", "12 13 14", "-5", "100000 0"])
def test_unreadable_numbers_are_no_limit(tmp_path: Path, text: str) -> None:
    root = make_root(tmp_path, cpu_dot_max=text)
    assert cpu_quota(root) is None


def test_overcommitted_group_has_no_free_memory(tmp_path: Path) -> None:
    root = make_root(tmp_path, memory_dot_max="1000", memory_dot_current="2000")
    assert cpu.free_memory_bytes(root) == 0


OWN = "4:memory:/jobs/own", "0::/jobs/own"
KILLS = {
    "v2": ("jobs__own__memory_dot_events", "low 0\noom 1\noom_kill {}\noom_group_kill 0"),
    "v1": (
        "memory__jobs__own__memory_dot_oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill {}",
    ),
    "v1, in a container": ("memory__memory_dot_oom_control", "under_oom 0\noom_kill {}"),
}
"""File and content of a group that counts kills, by version."""


@pytest.mark.parametrize("version", KILLS)
def test_oom_kills_of_other_groups_are_not_counted(tmp_path: Path, version: str) -> None:
    file, text = KILLS[version]
    elsewhere = file.replace("jobs__own__", "jobs__other__").replace(
        "memory__memory_dot", "memory__other__memory_dot"
    )
    root = make_root(tmp_path, **{file: text.format(2), elsewhere: text.format(7)})
    set_group(root, *OWN)
    (root / "proc/vmstat").write_text("pgfault 7\noom_kill 9\n")
    assert oom_kill_count(root) == 2


def test_oom_kills_of_the_own_group_come_before_those_above(tmp_path: Path) -> None:
    events = "oom 0\noom_kill {}"
    root = make_root(
        tmp_path,
        jobs__own__memory_dot_events=events.format(0),
        jobs__memory_dot_events=events.format(5),
    )
    set_group(root, *OWN)
    assert oom_kill_count(root) == 0


@pytest.mark.parametrize(
    ("vmstat", "kills"),
    [
        ("oom_kill 3\npgfault 7\n", 3),
        ("pgfault 7\noom_kill 0\n", 0),
        ("pgfault 7\n", None),
        (None, None),
    ],
)
def test_oom_kills_of_the_machine_count_where_groups_have_none(
    tmp_path: Path, vmstat: str | None, kills: int | None
) -> None:
    root = make_root(tmp_path, memory_dot_events="max 0")
    set_group(root, *OWN)
    if vmstat is not None:
        (root / "proc/vmstat").write_text(vmstat)
    assert oom_kill_count(root) == kills
