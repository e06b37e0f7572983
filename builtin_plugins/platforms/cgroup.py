"""Memory limit, CPU quota and out-of-memory kills of this process's control group (cgroup).

The limits are those of the group and of the groups above it.

Docker, Kubernetes, Slurm and systemd limit processes this way. Both versions are read: version 2,
with one tree of groups, and version 1, with a tree for each controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

NO_LIMIT: Final = 1 << 60
"""Larger numbers mean no limit: version 1 has no word for it."""


@dataclass(frozen=True)
class MemoryLimit:
    """The memory of one group with a limit, in bytes."""

    limit_bytes: int
    used_bytes: int
    """Memory in use, without file pages that the system drops when memory is short."""

    @property
    def free_bytes(self) -> int:
        """Memory that can still be allocated."""
        return max(0, self.limit_bytes - self.used_bytes)


def tightest_memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the limit that leaves the least memory; None for no limit."""
    return min(_memory_limits(root), key=lambda limit: limit.free_bytes, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the smallest memory limit; None for no limit."""
    return min((limit.limit_bytes for limit in _memory_limits(root)), default=None)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the smallest CPU quota in cores; None for no limit."""
    quotas = []
    for group in _groups(root, "cpu"):
        words = _read(group / "cpu.max") or [
            *_read(group / "cpu.cfs_quota_us"),
            *_read(group / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(map(str.isdigit, words)) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def oom_kill_count(root: Path = Path("/")) -> int | None:
    """Return how many processes of this process's group the out-of-memory killer has ended.

    It is the number of the whole machine where groups do not count, and None where nothing does.
    """
    for group in _groups(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            count = _statistics(group / name).get("oom_kill")
            if count is not None:
                return count
    return _statistics(root / "proc/vmstat").get("oom_kill")


def _memory_limits(root: Path) -> list[MemoryLimit]:
    limits = []
    for group in _groups(root, "memory"):
        statistics = _statistics(group / "memory.stat")
        for limit_file, used_file, reclaimable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(group / limit_file)
            if limit is not None and limit < NO_LIMIT:
                used = (_number(group / used_file) or 0) - statistics.get(reclaimable, 0)
                limits.append(MemoryLimit(limit, max(0, used)))
    return limits


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of its ancestors, for one controller."""
    mounted = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup") or ["0::/"]:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base = mounted
        elif controller in controllers.split(","):
            base = mounted / controller
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        if ".." in own.parts:  # outside of this process's namespace
            own = PurePosixPath()
        # A container may see its own group at the root, under the path of the host.
        yield from (base / group for group in (own, *own.parents))


def _statistics(file: Path) -> Mapping[str, int]:
    pairs = (line.split() for line in _lines(file))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(file: Path) -> int | None:
    words = _read(file)
    return int(words[0]) if words and words[0].isdigit() else None


def _read(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, ValueError):
        return []
