"""A file that a thread of its own writes, so that its caller never waits for the disk."""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import BinaryIO, Final

MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Largest size of data that is not written yet."""
CLOSE_S: Final = 5.0
"""Longest wait for the disk when the file is closed, in seconds."""


class BackgroundFile:
    """A file that is open for writing; errors of the disk are raised by later calls."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._chunks: SimpleQueue[bytes | None] = SimpleQueue()
        self._num_bytes = 0
        """Bytes passed to `write`."""
        self._num_written = 0
        """Bytes that the thread wrote."""
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="background-file", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Write data soon.

        Raises `OSError` if an earlier write failed, or if the disk is too slow.
        """
        self._num_bytes += len(data)
        if self._error is None and self._num_bytes - self._num_written > MAX_PENDING_BYTES:
            self._error = self._too_slow()
        if self._error is not None:
            raise self._error
        self._chunks.put(data)

    def close(self) -> None:
        """Write what is pending and close the file.

        Raises `OSError` if that fails or takes too long, or if an earlier write failed.
        """
        self._chunks.put(None)
        if self._error is None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                self._error = self._too_slow()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (data := self._chunks.get()) is not None:
                self._file.write(data)
                if self._chunks.empty():
                    self._file.flush()
                self._num_written += len(data)
            self._file.close()
        except OSError as error:
            self._error = error
            with suppress(OSError):  # it tries to write its buffer again
                self._file.close()

    def _too_slow(self) -> OSError:
        pending = self._num_bytes - self._num_written
        return OSError(f"the disk is too slow, {pending} bytes are not written")
