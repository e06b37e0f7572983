"""Media files of the server's machine, below `--allowed-local-media-path` only."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote

from core.api import InvalidRequest

_REFUSED = "got a file: URL of no image file below --allowed-local-media-path; expected one. "
_ACTION = "Send the image as a data: URL."


def read_local_file(url: str, root: Path | None, field: str, max_bytes: int) -> bytes:
    """Return a regular file below `root`, links resolved. Raises `InvalidRequest`.

    All refusals have one message: clients must not learn which files exist elsewhere.
    """
    if root is None:
        raise InvalidRequest(
            field, f"got a file: URL; expected a server with --allowed-local-media-path. {_ACTION}"
        )
    host, slash, path = url[len("file://") :].partition("/")
    try:
        if host not in ("", "localhost") or not slash or "?" in path or "#" in path:
            raise PermissionError(url)
        return _read(Path(f"/{unquote(path, errors='strict')}"), root.resolve(), field, max_bytes)
    except InvalidRequest:
        raise
    except (OSError, ValueError):
        raise InvalidRequest(field, _REFUSED + _ACTION) from None


def _read(path: Path, root: Path, field: str, max_bytes: int) -> bytes:
    """Return a file's content. Raises `OSError` unless it is a regular file below `root`."""
    resolved = path.resolve(strict=True)
    _require_below(resolved, root)
    # Without blocking: opening a pipe would wait for its writer.
    descriptor = os.open(resolved, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        # The path may have changed since: what counts is the file that is open now.
        opened = Path(f"/proc/self/fd/{descriptor}")
        if opened.exists():
            _require_below(opened.resolve(), root)
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise PermissionError(path)
        if state.st_size > max_bytes:
            raise InvalidRequest(
                field,
                f"got a file of {state.st_size} bytes; expected at most {max_bytes} "
                "(--max-media-bytes). Send a smaller image.",
            )
        return file.read(max_bytes)


def _require_below(path: Path, root: Path) -> None:
    if not path.is_relative_to(root):
        raise PermissionError(path)
