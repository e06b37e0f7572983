"""Folders that processes below the parent meet in, left by those that were killed before they had
met.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

_OURS: Final = re.compile(r"engine-(?:ranks-)?(\d+)-\w+")


def remove_folders_of(pids: Collection[int], base: Path | None = None) -> None:
    """Remove the folders whose names say that they belong to one of these processes, which have
    ended.
    """
    base = Path(tempfile.gettempdir()) if base is None else base
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            owner = _OURS.fullmatch(folder.name)
            if owner is None or int(owner[1]) not in pids:
                continue
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
