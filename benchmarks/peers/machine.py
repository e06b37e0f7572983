"""Reads CPU time and memory of processes, and load of the machine, from Linux."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
TICKS: Final = os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> list[int]:
    """Return a process and its running descendants, itself first."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    tree = [root]
    for pid in tree:  # grows while it is read
        tree += children.get(pid, [])
    return tree


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time of processes in seconds, including children that were waited for."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / TICKS


def pss_bytes(pids: Iterable[int]) -> int:
    """Return the memory of processes in bytes; shared pages count once."""
    total = 0
    for pid in pids:
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue  # ended
        if found := re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE):
            total += int(found[1]) << 10
    return total


def busy_s() -> float:
    """Return the busy time of all cores since boot in seconds, including steal."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, (PROC / "stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


def describe() -> dict[str, Any]:
    """Return a description of the machine."""
    text = (PROC / "cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    flags = set(text.split())
    useful = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": [flag for flag in useful if flag in flags],
        "load at the start": round(os.getloadavg()[0], 2),
    }


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty for an ended process."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
