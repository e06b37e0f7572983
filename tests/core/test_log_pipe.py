"""Log lines for pipes: whole, in order, and dropped rather than waited for."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.log_pipe import LogPipe
from core.logs import StderrHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read(reader: int) -> bytes:
    """Return everything that is in a pipe."""
    found = b""
    try:
        while part := os.read(reader, 1 << 20):
            found += part
    except BlockingIOError:
        pass
    return found


def test_lines_of_any_length_arrive_whole_and_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    log = LogPipe(writer)
    sent = []
    received = b""
    for i in range(300):
        line = bytes([65 + i % 26]) * (i * 997 % 30_000) + b"\n"
        if log.write(line):
            sent.append(line)
        if i % 7 == 0:
            received += read(reader)
    received += read(reader)
    assert log.write(b"last\n")
    received += read(reader)
    assert received == b"".join(sent) + b"last\n"
    assert len(sent) < 300
    log.close()


def test_other_writers_of_the_pipe_still_block(pipe: tuple[int, int]) -> None:
    log = LogPipe(pipe[1])
    assert os.get_blocking(pipe[1])
    log.close()


def test_other_files_are_not_pipes(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match="not a pipe"):
        LogPipe(file.fileno())


def test_pipe_with_a_closed_descriptor_is_not_used(pipe: tuple[int, int]) -> None:
    log = LogPipe(pipe[1])
    assert log.is_open(pipe[1])
    os.close(log._descriptor)
    assert not log.is_open(pipe[1])
    log.close()  # closes nothing


def test_lost_log_lines_are_counted_once_the_pipe_is_read(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    handler = StderrHandler()
    with open(os.dup(writer), "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        for i in range(2000):
            handler.emit(logging.LogRecord("a", logging.ERROR, "", 0, f"{i} {'a' * 100}", (), None))
        lines = read(reader).decode().splitlines()
        handler.emit(logging.LogRecord("a", logging.ERROR, "", 0, "again", (), None))
        report, *again = read(reader).decode().splitlines()
    assert [line.split()[0] for line in lines] == [str(i) for i in range(len(lines))]
    assert len(lines) < 2000
    assert report == f"standard error was not read: {2000 - len(lines)} log lines are lost"
    assert again == ["again"]


def test_closed_or_replaced_standard_error_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = StderrHandler()
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    handler.emit(logging.LogRecord("a", logging.ERROR, "", 0, "text", (), None))
    assert stream.getvalue() == "text\n"
