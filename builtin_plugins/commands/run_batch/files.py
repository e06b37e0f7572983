"""Input and output of a batch: local files or URLs given by the operator."""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from core.api import ConfigError, EngineError
from core.api.config import create_option_file, open_option_file

TIMEOUT_S: Final = 1000.0
"""Timeout of an HTTP transfer."""
MAX_LINE_BYTES: Final = 1 << 26
"""Size limit of one request."""


@contextmanager
def opened(location: str) -> Iterator[BinaryIO]:
    """Open the requests.

    Raises `ConfigError` for a missing file, `EngineError` for a failed download.
    """
    if not _is_address(location):
        with open_option_file("run-batch: --input-file", location) as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        try:
            with urllib.request.urlopen(location, timeout=TIMEOUT_S) as answer:
                shutil.copyfileobj(answer, copy)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"run-batch: --input-file {location} cannot be fetched: {_reason(error)}."
            ) from error
        copy.seek(0)
        yield copy


def bounded_lines(file: BinaryIO, location: str) -> Iterator[bytes]:
    """Yield the lines of a file. Raises `ConfigError` for one that is too long to be held."""
    number = 1
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise ConfigError(
                f"run-batch: --input-file {location}, line {number}: got more than "
                f"{MAX_LINE_BYTES} bytes; expected fewer. Correct the file."
            )
        yield line
        number += 1


@contextmanager
def written(location: str, folder: str | None = None) -> Iterator[BinaryIO]:
    """Open the results; for a URL they are written to a temporary file in `folder` and uploaded at
    the end.

    Raises `ConfigError` if nothing can be written, `EngineError` naming the file if the upload
    fails.
    """
    if not _is_address(location):
        with create_option_file("run-batch: --output-file", location) as file:
            yield file
        return
    try:
        descriptor, path = tempfile.mkstemp(".jsonl", "batch-", folder)
    except OSError as error:
        raise ConfigError(
            f"run-batch: --output-tmp-dir {folder} cannot be written: {error.strerror}."
        ) from error
    with os.fdopen(descriptor, "wb") as copy:
        yield copy
    _put(location, path)
    with suppress(OSError):
        os.unlink(path)


def _put(address: str, path: str) -> None:
    headers = {"Content-Type": "application/jsonl", "Content-Length": str(os.path.getsize(path))}
    with open(path, "rb") as results:
        request = urllib.request.Request(address, results, headers, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            raise EngineError(
                f"run-batch: --output-file {address} cannot store the results: {_reason(error)}; "
                f"they are in {path}."
            ) from error


def _is_address(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(reason).rstrip(".")
