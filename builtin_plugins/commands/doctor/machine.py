"""Checks of the machine: processor, memory, disk, limits.

Reads system files; changes nothing.
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
from builtin_plugins.platforms.api import cpu_quota, tightest_memory_limit

MIB: Final = 1 << 20
GIB: Final = 1 << 30
ROOT: Final = Path("/")
FLAGS: Final = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
)
TESTED_PLATFORM: Final = ("Linux", "x86_64")
MIN_OPEN_FILES: Final = 4096
NO_LIMIT: Final = 1 << 60
SOCKETS: Final = "engine-*"
STARTING_S: Final = 60
"""Age in seconds below which a folder may belong to a starting engine."""
REFUSED: Final = (errno.ECONNREFUSED, errno.ENOENT)


def check_python() -> Iterator[Finding]:
    """Check the interpreter and its version."""
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
    """Check operating system and processor architecture."""
    yield judge(
        "platform",
        platform.platform(),
        warn=(system, machine) != TESTED_PLATFORM,
        advice="Only Linux on x86-64 is tested; other platforms should work",
    )


def check_processor(root: Path = ROOT) -> Iterator[Finding]:
    """Check instruction sets and usable cores."""
    lines = _lines(root / "proc/cpuinfo")
    name = next(
        (text for key, text in lines if key == "model name"),
        platform.processor() or "unknown processor",
    )
    available = set(next((text for key, text in lines if key in ("flags", "Features")), "").split())
    flags = [flag for flag in FLAGS if flag in available]
    yield judge(
        "processor",
        f"{name}: {', '.join(flags) or 'no supported instruction set'}",
        warn=bool(available) and not {"avx2", "asimd"} & available,
        advice="Kernels run in their slow, generic variant",
    )
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = cpu_quota(root)
    limited = quota is not None and quota < usable
    yield judge(
        "cores",
        f"{usable} of {os.cpu_count()} usable"
        + ("" if quota is None else f", container limit {quota:g}"),
        warn=limited,
        advice="Threads above the container limit slow each other down: --num-threads "
        f"{max(1, int(quota or 1))}",
    )


def check_memory(root: Path = ROOT) -> Iterator[Finding]:
    """Check the free memory of machine and container."""
    facts = dict(_lines(root / "proc/meminfo"))
    if "MemAvailable" in facts:
        free, total = (int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
        limit = tightest_memory_limit(root)
        text = f"{show_bytes(free)} free of {show_bytes(total)}"
        if limit is not None:
            free = min(free, limit.free_bytes)
            text += (
                f"; container: {show_bytes(limit.free_bytes)} free of "
                f"{show_bytes(limit.limit_bytes)}"
            )
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
            "vm.overcommit_memory is 2: reserved memory counts as used",
            "The KV cache is reserved completely at the start: set --kv-cache-memory-bytes, or "
            "allow overcommit",
        )


def check_disk(root: Path = ROOT) -> Iterator[Finding]:
    """Check that shared memory and the temporary folder are writable and not full."""
    shared = root / "dev/shm"
    if shared.is_dir():
        yield _folder("/dev/shm", shared, need=64 * MIB, required=False)
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        yield Finding(
            "fail", "tmp", f"no usable folder: {error}", "Set TMPDIR to a writable folder"
        )
    else:
        yield _folder("tmp", folder, need=64 * MIB, required=True)


def check_limits() -> Iterator[Finding]:
    """Check the resource limits of a process."""
    try:
        import resource  # lazy: not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judge(
        "open files",
        f"{_limit(soft)}, hard limit {_limit(hard)}",
        fail=0 <= soft < 256,
        warn=0 <= soft < MIN_OPEN_FILES,
        advice=f"Every connection needs one: ulimit -n {min(65536, hard) if hard > 0 else 65536}",
    )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield judge("locked memory", "no limit" if _is_unlimited(locked) else show_bytes(locked))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if not _is_unlimited(space):
        yield Finding(
            "warn",
            "address space",
            show_bytes(space),
            "Weight files are memory-mapped: ulimit -v unlimited",
        )


def check_port(port: int | None) -> Iterator[Finding]:
    """Check that the server port is free; fails only for an explicit port."""
    number = port or 8000
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError as error:
            text = f"{number} cannot be used: {error.strerror}"
            advice = "Find the listening process (`ss -ltnp`), or set another --port"
            yield Finding("fail" if port else "warn", "port", text, advice)
        else:
            yield Finding("ok", "port", f"{number} is free")


def check_leftovers(folder: Path | None = None) -> Iterator[Finding]:
    """Find sockets that ended engines did not remove."""
    base = Path(tempfile.gettempdir()) if folder is None else folder
    dead = [str(found) for found in sorted(base.glob(SOCKETS)) if _is_left_over(found)]
    yield judge(
        "leftovers",
        f"sockets of dead engines: {', '.join(dead)}" if dead else "no sockets of dead engines",
        warn=bool(dead),
        advice=f"They are unused: rm -r {' '.join(dead)}",
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
        advice="Set TMPDIR to a folder with free space"
        if required
        else "Tensor parallel ranks may need it",
    )


def _is_left_over(folder: Path) -> bool:
    try:
        if time.time() - folder.stat().st_mtime < STARTING_S:
            return False
        sockets = [path for path in folder.iterdir() if stat.S_ISSOCK(path.stat().st_mode)]
    except OSError:
        return False  # removed meanwhile, or owned by another user
    return bool(sockets) and not any(_accepts_connections(path) for path in sockets)


def _accepts_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) not in REFUSED


def _lines(file: Path) -> list[tuple[str, str]]:
    """Return the `name: value` lines of a system file."""
    try:
        pairs = (line.partition(":") for line in file.read_text().splitlines())
    except OSError:
        return []
    return [(name.strip(), value.strip()) for name, _, value in pairs if value.strip()]


def _is_unlimited(limit: int) -> bool:
    return limit < 0 or limit >= NO_LIMIT


def _limit(limit: int) -> str:
    return "no limit" if _is_unlimited(limit) else f"{limit:,}"
