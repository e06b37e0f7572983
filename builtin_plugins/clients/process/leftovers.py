"""Folders that processes killed during their start have left in the temporary directory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final

_OURS: Final = re.compile(r"engine-(?:ranks-)?(\d+)-\w+")


def remove_leftovers(base: Path | None = None) -> list[Path]:
    """Remove the folders whose owner is dead and in which nobody listens; return them.

    A folder's name says whose it is. Only this user's own are touched, and a link is no folder.
    """
    removed = []
    base = Path(tempfile.gettempdir()) if base is None else base
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            owner = _OURS.fullmatch(folder.name)
            with contextlib.suppress(OSError):  # gone by now
                if (
                    owner is not None
                    and _is_ours(folder)
                    and not _is_alive(int(owner[1]))
                    and not _is_used(folder)
                ):
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
    return removed


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _is_used(folder: Path) -> bool:
    """Say whether somebody listens in it: its owner may be in a container that shares the directory
    with us.
    """
    return any(stat.S_ISSOCK(path.lstat().st_mode) and _is_heard(path) for path in folder.iterdir())


def _is_heard(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
