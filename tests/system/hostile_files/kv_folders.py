"""Folders of a disk tier: blocks that are damaged, linked, of other engines, or no files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.system.hostile_files.hostile_file import HostileFile

KIND: Final = "KV folder"
Damage = Callable[[Path], None]
"""Changes one block file."""


def content(change: Callable[[bytes], bytes]) -> Damage:
    """Return a damage of a block's bytes."""
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def fifo(path: Path) -> None:
    """Put a FIFO in place of a block."""
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    """Put a directory in place of a block."""
    path.unlink()
    path.mkdir()


def linked(target: str) -> Damage:
    """Return a damage that replaces a block by a link."""

    def damage(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return damage


def sparse(path: Path) -> None:
    """Make a block of 64 GiB that takes no space."""
    with path.open("r+b") as file:
        file.truncate(64 << 30)


def crowd(path: Path) -> None:
    """Add 2,000 files with odd names."""
    for number in range(2000):
        (path.parent / f"{number}-{'f' * 64}").touch()
        (path.parent / f"x{number}\n").touch()


def swap(path: Path) -> None:
    """Put another block's content into a block."""
    others = [other for other in path.parents[1].rglob("*-*") if other != path]
    shutil.copy(others[0], path)


DAMAGES: Final[dict[str, Damage]] = {
    "empty": content(lambda old: b""),
    "truncated": content(lambda old: old[: len(old) // 2]),
    "one byte flipped": content(lambda old: old[:-1] + bytes([old[-1] ^ 1])),
    "wrong checksum": content(lambda old: old[:20] + bytes([old[20] ^ 255]) + old[21:]),
    "wrong magic": content(lambda old: b"x" * 16 + old[16:]),
    "foreign version": content(lambda old: old[:15] + b"\x02" + old[16:]),
    "garbage": content(lambda old: os.urandom(len(old))),
    "zeros": content(lambda old: bytes(len(old))),
    "NaN": content(lambda old: old[:32] + b"\xff" * (len(old) - 32)),
    "longer": content(lambda old: old * 2),
    "64 GiB of nothing": sparse,
    "another block": swap,
    "FIFO": fifo,
    "directory": directory,
    "link to an endless device": linked("/dev/zero"),
    "link to a text": linked("/etc/hostname"),
    "link to itself": lambda path: linked(path.name)(path),
    "unreadable": lambda path: path.chmod(0),
    "thousands of odd names": crowd,
}
CORPUS: Final = [
    HostileFile(KIND, f"{name}{when}", lambda folder: None, None, way, options={"damage": name})
    for name in DAMAGES
    for way, when in (("kv_folder", ""), ("kv_folder_while_running", ", while the engine runs"))
]
