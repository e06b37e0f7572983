"""A disk that does not answer: a library that lets a server's calls on one folder wait."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).with_name("held_disk.c")


@dataclass(frozen=True)
class HeldDisk:
    """A folder with files that can be held, for all processes that start from now on."""

    folder: Path
    flag: Path
    log: Path

    def hold(self) -> None:
        """Let calls that open, write, read, find, rename or delete files wait from now on."""
        self.flag.touch()

    def release(self) -> None:
        """Let all calls go on."""
        self.flag.unlink(missing_ok=True)

    def num_waits(self) -> int:
        """Return the number of calls that had to wait so far."""
        return len(self.log.read_text().splitlines())

    def waited_for(self) -> set[str]:
        """Return the names in the folder for which calls had to wait so far."""
        paths = map(Path, self.log.read_text().splitlines())
        return {path.relative_to(self.folder).parts[0] for path in paths if path != self.folder}


@pytest.fixture
def held_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDisk]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "held_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
    disk = HeldDisk(tmp_path / "disk", tmp_path / "held", tmp_path / "waits")
    disk.folder.mkdir()
    disk.log.touch()
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("HELD_FOLDER", str(disk.folder))
    monkeypatch.setenv("HELD_FLAG", str(disk.flag))
    monkeypatch.setenv("HELD_LOG", str(disk.log))
    yield disk
    disk.release()
