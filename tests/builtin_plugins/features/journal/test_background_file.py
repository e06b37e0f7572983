"""Files that a thread writes: in order, and without waiting for the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builtin_plugins.features.journal import background_file
from builtin_plugins.features.journal.background_file import BackgroundFile


@pytest.fixture
def stuck_disk(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A FIFO that takes 64 KiB, and its reader, which does not read by itself."""
    path = tmp_path / "stuck"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


def write_repeatedly(file: BackgroundFile, count: int) -> None:
    for _ in range(count):
        file.write(b"a" * 10_000)


def write_until_it_fails(file: BackgroundFile) -> None:
    while True:
        file.write(b"a")
        time.sleep(0.001)  # the thread writes in between


def test_data_is_written_in_order(tmp_path: Path) -> None:
    chunks = [bytes([i % 256]) * i for i in range(500)]
    file = BackgroundFile((tmp_path / "file").open("wb"))
    for chunk in chunks:
        file.write(chunk)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"".join(chunks)


def test_error_of_the_disk_is_raised_later() -> None:
    file = BackgroundFile(Path("/dev/full").open("wb"))  # noqa: SIM115 - closed by its thread
    with pytest.raises(OSError, match="No space left"):
        write_until_it_fails(file)
    with pytest.raises(OSError, match="No space left"):
        file.close()


def test_writes_do_not_wait_for_a_stuck_disk(
    stuck_disk: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_file, "MAX_PENDING_BYTES", 1 << 20)
    path, _ = stuck_disk
    file = BackgroundFile(path.open("wb"))
    with pytest.raises(OSError, match=r"the disk is too slow, \d+ bytes are not written"):
        write_repeatedly(file, 1000)
    with pytest.raises(OSError, match="the disk is too slow"):
        file.close()


def test_closing_waits_for_a_stuck_disk_only_for_a_while(
    stuck_disk: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_file, "CLOSE_S", 0.01)
    path, _ = stuck_disk
    file = BackgroundFile(path.open("wb"))
    file.write(b"a" * 1_000_000)
    with pytest.raises(OSError, match="the disk is too slow, 1000000 bytes are not written"):
        file.close()
