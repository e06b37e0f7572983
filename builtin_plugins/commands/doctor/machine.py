"""What the machine gives: processor, memory, disk, limits.

Reads files of the system, changes nothing.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from builtin_plugins.commands.doctor.finding import Finding, judge
from builtin_plugins.commands.sizes import show_bytes

MIB: Final = 1 << 20
GIB: Final = 1 << 30
ROOT: Final = Path("/")
FLAGS: Final = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
)
TESTED: Final = ("Linux", "x86_64")
FEW_FILES: Final = 4096
NO_LIMIT: Final = 1 << 60
SOCKETS: Final = "engine-*"
YOUNG_S: Final = 60
"""Folders younger than this may be of an engine that is just starting."""
REFUSED: Final = (errno.ECONNREFUSED, errno.ENOENT)


def check_python() -> Iterator[Finding]:
    """Which interpreter, and whether it is one we can run on."""
    version = platform.python_version()
    yield judge(
        "python",
        f"{platform.python_implementation()} {version}, {sys.executable}",
        fail=sys.version_info < (3, 11),
        warn=platform.python_implementation() != "CPython",
        advice="The engine needs CPython 3.11 or newer",
    )


def check_platform(
    system: str = platform.system(), machine: str = platform.machine()
) -> Iterator[Finding]:
    """Operating system and processor architecture."""
    yield judge(
        "platform",
        platform.platform(),
        warn=(system, machine) != TESTED,
        advice="Only Linux on x86-64 is tested; the rest is expected to work",
    )


def check_processor(root: Path = ROOT) -> Iterator[Finding]:
    """Instruction sets and cores."""
    lines = _lines(root / "proc/cpuinfo")
    name = next(
        (text for key, text in lines if key == "model name"),
        platform.processor() or "unknown processor",
    )
    have = set(next((text for key, text in lines if key in ("flags", "Features")), "").split())
    flags = [flag for flag in FLAGS if flag in have]
    yield judge(
        "processor",
        f"{name}: {', '.join(flags) or 'no instruction set we have kernels for'}",
        warn=bool(have) and not {"avx2", "asimd"} & have,
        advice="Kernels run in their slow, generic form",
    )
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _cpu_quota(root)
    limited = quota is not None and quota < usable
    yield judge(
        "cores",
        f"{usable} of {os.cpu_count()} usable"
        + ("" if quota is None else f", container limit {quota:g}"),
        warn=limited,
        advice="More threads than the container may run slow each other down: --num-threads "
        f"{max(1, int(quota or 1))}",
    )


def check_memory(root: Path = ROOT) -> Iterator[Finding]:
    """Free memory, of the machine and of the container."""
    facts = dict(_lines(root / "proc/meminfo"))
    if "MemAvailable" in facts:
        free, total = (int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
        limit, used = _container_memory(root)
        text = f"{show_bytes(free)} free of {show_bytes(total)}"
        if limit is not None:
            free = min(free, limit - used)
            text += f"; container: {show_bytes(limit - used)} free of {show_bytes(limit)}"
        yield judge(
            "memory",
            text,
            fail=free < GIB // 4,
            warn=free < 2 * GIB,
            advice="`engine plan MODEL` says what a model needs",
        )
    strict = root / "proc/sys/vm/overcommit_memory"
    if strict.is_file() and strict.read_text().strip() == "2":
        yield Finding(
            "warn",
            "overcommit",
            "vm.overcommit_memory is 2: memory counts as used when it is reserved",
            "The KV cache is reserved whole and filled by and by: set --kv-cache-memory-bytes, or "
            "allow overcommitting",
        )


def check_disk(root: Path = ROOT) -> Iterator[Finding]:
    """Shared memory and the folder for temporary files: there, writable, not full."""
    shared = root / "dev/shm"
    if shared.is_dir():
        yield _folder("/dev/shm", shared, need=64 * MIB, required=False)
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        yield Finding(
            "fail", "tmp", f"no usable folder: {error}", "Point TMPDIR to one that can be written"
        )
    else:
        yield _folder("tmp", folder, need=64 * MIB, required=True)


def check_limits() -> Iterator[Finding]:
    """What the system lets one process have."""
    try:
        import resource  # lazy: not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judge(
        "open files",
        f"{_limit(soft)}, at most {_limit(hard)}",
        fail=0 <= soft < 256,
        warn=0 <= soft < FEW_FILES,
        advice=f"Every connection takes one: ulimit -n {min(65536, hard) if hard > 0 else 65536}",
    )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield judge("locked memory", "no limit" if _is_unlimited(locked) else show_bytes(locked))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if not _is_unlimited(space):
        yield Finding(
            "warn",
            "address space",
            show_bytes(space),
            "Weights are mapped whole: ulimit -v unlimited",
        )


def check_port(port: int | None) -> Iterator[Finding]:
    """Whether the server's port is free; only one that was asked for makes the report fail."""
    number = port or 8000
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError as error:
            text = f"{number} cannot be used: {error.strerror}"
            advice = "Find out who listens there (`ss -ltnp`), or serve on another --port"
            yield Finding("fail" if port else "warn", "port", text, advice)
        else:
            yield Finding("ok", "port", f"{number} is free")


def check_leftovers(folder: Path | None = None) -> Iterator[Finding]:
    """Sockets of engines that have ended without removing them."""
    base = Path(tempfile.gettempdir()) if folder is None else folder
    dead = [str(found) for found in sorted(base.glob(SOCKETS)) if _is_left_over(found)]
    yield judge(
        "leftovers",
        f"sockets of dead engines: {', '.join(dead)}" if dead else "no sockets of dead engines",
        warn=bool(dead),
        advice=f"Nobody uses them: rm -r {' '.join(dead)}",
    )


def _folder(subject: str, folder: Path, *, need: int, required: bool) -> Finding:
    text = f"{folder}: {show_bytes(shutil.disk_usage(folder).free)} free"
    writable = True
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"engine")
    except OSError as error:
        writable = False
        text = f"{text}, cannot be written ({error.strerror})"
    return judge(
        subject,
        text,
        fail=required and not writable,
        warn=not writable or shutil.disk_usage(folder).free < need,
        advice="Point TMPDIR to a folder with room"
        if required
        else "Ranks that exchange data may need it",
    )


def _is_left_over(folder: Path) -> bool:
    try:
        if time.time() - folder.stat().st_mtime < YOUNG_S:
            return False
        sockets = [path for path in folder.iterdir() if stat.S_ISSOCK(path.stat().st_mode)]
    except OSError:
        return False  # gone by now, or somebody else's
    return bool(sockets) and not any(_is_heard(path) for path in sockets)


def _is_heard(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) not in REFUSED


def _cpu_quota(root: Path) -> float | None:
    """Return how many cores the container may keep busy; None without a limit."""
    words = _words(root / "sys/fs/cgroup/cpu.max")
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]) / int(words[1])
    return None


def _container_memory(root: Path) -> tuple[int | None, int]:
    """Return the container's limit, None without one, and what is used of it."""
    folder = root / "sys/fs/cgroup"
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        words = _words(folder / limit), _words(folder / used)
        if all(words) and words[0][0].isdigit() and int(words[0][0]) < NO_LIMIT:
            return int(words[0][0]), int(words[1][0])
    return None, 0


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _lines(file: Path) -> list[tuple[str, str]]:
    """Return the `name: value` lines of a file of the system."""
    try:
        pairs = (line.partition(":") for line in file.read_text().splitlines())
    except OSError:
        return []
    return [(name.strip(), value.strip()) for name, _, value in pairs if value.strip()]


def _is_unlimited(limit: int) -> bool:
    return limit < 0 or limit >= NO_LIMIT


def _limit(limit: int) -> str:
    return "no limit" if _is_unlimited(limit) else f"{limit:,}"
