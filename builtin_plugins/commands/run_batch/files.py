"""Where a batch comes from and goes to: local files, or addresses that the operator names.

No line of a batch names any.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final, Literal

from core.api import ConfigError, EngineError

TIMEOUT_S: Final = 1000.0
"""For an address to answer."""


@contextmanager
def opened(place: str) -> Iterator[BinaryIO]:
    """Open the requests.

    Raises `ConfigError` for a file that is not there, `EngineError` for an address without one.
    """
    if not _is_address(place):
        with _open(place, "rb", "--input-file", "read") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        try:
            with urllib.request.urlopen(place, timeout=TIMEOUT_S) as answer:
                shutil.copyfileobj(answer, copy)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"run-batch: --input-file {place} cannot be fetched: {_said(error)}."
            ) from error
        copy.seek(0)
        yield copy


@contextmanager
def written(place: str, folder: str | None = None) -> Iterator[BinaryIO]:
    """Open the results; those for an address are kept in a file of `folder` and put there at the
    end.

    Raises `ConfigError` where nothing can be written, `EngineError` naming the file when an address
    does not take it.
    """
    if not _is_address(place):
        with _open(place, "wb", "--output-file", "written") as file:
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
    _put(place, path)
    with suppress(OSError):
        os.unlink(path)


def _open(path: str, mode: Literal["rb", "wb"], flag: str, what: str) -> BinaryIO:
    try:
        return open(path, mode)
    except OSError as error:
        raise ConfigError(
            f"run-batch: {flag} {path} cannot be {what}: {error.strerror}."
        ) from error


def _put(address: str, path: str) -> None:
    headers = {"Content-Type": "application/jsonl", "Content-Length": str(os.path.getsize(path))}
    with open(path, "rb") as results:
        request = urllib.request.Request(address, results, headers, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            raise EngineError(
                f"run-batch: --output-file {address} does not take the results: {_said(error)}; "
                f"they are in {path}."
            ) from error


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _said(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(reason).rstrip(".")
