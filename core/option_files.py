"""Reads and writes files that options name: within bounds, and without an endless wait."""

from __future__ import annotations

import json
import os
import select
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

from core.errors import ConfigError

MAX_BYTES: Final = 64 << 20
"""Default size limit of a file that is read whole."""
MAX_DEPTH: Final = 64
"""Limit of nested values in a file."""
MAX_VALUES: Final = 1 << 20
"""Limit of values in a file, with each use of a YAML alias counted."""
MAX_YAML_BYTES: Final = 1 << 20
"""Size limit of a YAML file; a megabyte is parsed in seconds."""
WRITER_S: Final = 10.0
"""Seconds to wait for the first bytes of a pipe."""
_PART_BYTES: Final = 1 << 20
ADVICE: Final = "Name another file."
AnyPath: TypeAlias = str | os.PathLike[str]
T = TypeVar("T")


def open_option_file(flag: str, path: AnyPath, advice: str = ADVICE) -> BinaryIO:
    """Return a regular file or a pipe, open for reading. Raises `ConfigError` with the flag.

    A plain `open` of a FIFO without a writer never returns, and reading a device may never end.
    """
    try:
        file = _open(path, os.O_RDONLY | os.O_NONBLOCK)
        if stat.S_ISFIFO(os.fstat(file).st_mode) and not _has_bytes(file):
            os.close(file)
            raise OSError(None, f"nothing was written to this pipe within {WRITER_S:g} s")
    except (OSError, ValueError) as error:
        raise _refusal(flag, path, "read", error, advice) from error
    os.set_blocking(file, True)
    return os.fdopen(file, "rb")


def check_option_file(flag: str, path: AnyPath) -> None:
    """Raise `ConfigError` unless a path is a readable regular file, which a library may open."""
    try:
        file = _open(path, os.O_RDONLY | os.O_NONBLOCK)
        is_pipe = stat.S_ISFIFO(os.fstat(file).st_mode)
        os.close(file)
        if is_pipe:
            raise OSError(None, "expected a regular file, got a pipe")
    except (OSError, ValueError) as error:
        raise _refusal(flag, path, "read", error) from error


def create_option_file(flag: str, path: AnyPath) -> BinaryIO:
    """Return a new file, or a pipe that has a reader. Raises `ConfigError` with the flag."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _refusal(flag, path, "written", error) from error
    os.set_blocking(file, True)
    return os.fdopen(file, "wb")


def read_option_bytes(
    flag: str, path: AnyPath, max_bytes: int = MAX_BYTES, advice: str = ADVICE
) -> bytes:
    """Return the content of a file. Raises `ConfigError` with the flag."""
    with open_option_file(flag, path, advice) as file:
        try:
            is_large = os.fstat(file.fileno()).st_size > max_bytes
            content = b"" if is_large else _read_up_to(file, max_bytes + 1)
        except OSError as error:
            raise _refusal(flag, path, "read", error, advice) from error
    if is_large or len(content) > max_bytes:
        fault = ValueError(f"got more than {max_bytes} bytes; expected fewer")
        raise _refusal(flag, path, "read", fault, advice)
    return content


def read_option_text(
    flag: str, path: AnyPath, max_bytes: int = MAX_BYTES, advice: str = ADVICE
) -> str:
    """Return the text of a file, without a byte order mark. Raises `ConfigError` with the flag."""
    content = read_option_bytes(flag, path, max_bytes, advice)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refusal(flag, path, "read", error, advice) from error


def read_option_json(flag: str, path: AnyPath) -> Any:
    """Return the value of a JSON file. Raises `ConfigError` with the flag."""
    text = read_option_text(flag, path)
    return parse_nested(json.loads, text, lambda error: _refusal(flag, path, "read", error))


def parse_nested(
    parse: Callable[[str], T], text: str, refusal: Callable[[ValueError], ConfigError]
) -> T:
    """Return the value that a parser reads, with bounds of its nesting and of its expanded size.

    Raises `refusal` of the parser's `ValueError`, and of values beyond the bounds.
    """
    try:
        value = parse(text)
        check_nested(value)
    except RecursionError as error:
        raise refusal(ValueError("values are nested too deep")) from error
    except ValueError as error:
        raise refusal(error) from error
    return value


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises `ValueError`."""
    import yaml  # lazy: only needed for a YAML file

    try:
        loader, root = compose_yaml(text)
        return None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def compose_yaml(text: str) -> tuple[Any, Any]:
    """Return a `yaml.SafeLoader` and the root node of its text.

    Raises `ValueError` for aliases that expand too far: merging keys would expand them.
    """
    import yaml  # lazy: as above

    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    check_nested(root, _yaml_children)
    return loader, root


def check_nested(
    value: Any, children: Callable[[Any], Iterable[Any]] = lambda item: _children(item)
) -> None:
    """Raise `ValueError` for values that are nested too deep, or too many once expanded."""
    level = [value]
    left = MAX_VALUES
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            inner += children(item)
            if len(inner) > left:
                raise ValueError(f"got more than {MAX_VALUES} values; expected fewer")
        if not inner:
            return
        left -= len(inner)
        level = inner
    raise ValueError(f"got more than {MAX_DEPTH} nested values; expected fewer")


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _yaml_children(node: Any) -> Iterable[Any]:
    """Return the nodes in a collection node; of mappings, keys and values."""
    value = getattr(node, "value", ())
    if isinstance(value, str):
        return ()
    return [part for item in value for part in (item if isinstance(item, tuple) else (item,))]


def _open(path: AnyPath, flags: int) -> int:
    """Open a regular file, a pipe or the null device."""
    file = os.open(path, flags | os.O_CLOEXEC)
    found = os.fstat(file)
    is_null = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode) or is_null):
        os.close(file)
        raise OSError(None, "expected a regular file or a pipe")
    return file


def _read_up_to(file: BinaryIO, max_bytes: int) -> bytes:
    """Read in parts: one read of `max_bytes` would reserve them first."""
    parts = []
    while max_bytes > 0 and (part := file.read(min(max_bytes, _PART_BYTES))):
        parts.append(part)
        max_bytes -= len(part)
    return b"".join(parts)


def _has_bytes(pipe: int) -> bool:
    """Return whether a pipe has bytes or an ended writer, waiting for the first of them."""
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    return bool(ready.poll(WRITER_S * 1000))


def _refusal(
    flag: str, path: AnyPath, what: str, error: OSError | ValueError, advice: str = ADVICE
) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    name = str(Path(path))
    text = name if name.isprintable() and len(name) <= 300 else f"{name!r:.300}"
    return ConfigError(f"{flag} {text} cannot be {what}: {reason}. {advice}")
