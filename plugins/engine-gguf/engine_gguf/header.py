"""Reads and validates the header of a GGUF file. Independent of models.

A file has "GGUF", a version, counts of tensors and settings, the settings (name, type, value), and
the tensors (name, sizes, type, offset). The data starts at the next multiple of the alignment.
Numbers are little endian. Every length is checked against the file size before it is used: a wrong
length would exhaust the memory, a wrong offset would read another tensor.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from core.api import ModelError
from engine_gguf.tensor_types import TENSOR_TYPES, TensorType

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT: Final = 32
MAX_HEADER_BYTES: Final = 1 << 28
MAX_STRINGS: Final = 1 << 22
"""Per list; the largest vocabularies have a sixteenth of it."""
MAX_SETTINGS: Final = 1 << 16
MAX_DIMENSIONS: Final = 4
LARGEST: Final = 2**62
_STRING: Final = 8
_LIST: Final = 9
_NUMBERS: Final[Mapping[int, np.dtype[Any]]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Numeric types of settings."""
_ADVICE: Final = "Download the file again."
_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Name, type, shape and position of one tensor in its file."""

    name: str
    kind: TensorType
    shape: tuple[int, ...]
    """Shape in elements, rows first, as in torch."""
    start: int
    """Offset of its first byte from the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one file."""

    path: Path
    settings: Mapping[str, Any]
    """Numbers, strings, lists of strings, and numpy arrays of numbers."""
    tensors: tuple[TensorEntry, ...]
    """Tensors in the order of their data."""


def read_header(path: Path) -> Header:
    """Return the header of a file. Raises `ModelError` naming file and fault."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            size = path.stat().st_size
            if size < len(MAGIC) + 20 or file.read(len(MAGIC)) != MAGIC:
                raise file_error(path, f"is not a GGUF file: it has {size} bytes and no GGUF magic")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                return _Reader(path, whole, size).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file: a plain `open` of a FIFO waits for a writer."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "expected a regular file")
    return descriptor


class _Reader:
    """Reads a header from start to end."""

    def __init__(self, path: Path, whole: mmap.mmap, size: int) -> None:
        self._path = path
        self._whole = whole
        self._size = size
        self._end = min(size, MAX_HEADER_BYTES)
        self._at = len(MAGIC)

    def header(self) -> Header:
        version = self._number(4)
        if version not in VERSIONS:
            raise file_error(self._path, f"has version {version}; expected 2 or 3, little endian")
        num_tensors = self._number(8)
        num_settings = self._number(8)
        if num_settings > MAX_SETTINGS or num_tensors > (self._end - self._at) // 24:
            raise file_error(
                self._path, f"claims {num_tensors} tensors and {num_settings} settings"
            )
        settings: dict[str, Any] = {}
        for _ in range(num_settings):
            name = self._text("the name of a setting")
            if name in settings:
                raise file_error(self._path, f"has the setting {printable(name)} twice")
            settings[name] = self._value(name, self._number(4))
        described = [self._described() for _ in range(num_tensors)]
        alignment = settings.get("general.alignment", ALIGNMENT)
        if (
            type(alignment) is not int
            or not 1 <= alignment <= 1 << 20
            or alignment & (alignment - 1)
        ):
            raise file_error(self._path, f"has the alignment {alignment!r:.40}")
        base = -(-self._at // alignment) * alignment
        return Header(self._path, settings, self._positioned(described, base, alignment))

    def _take(self, count: int, what: str) -> int:
        """Skip `count` bytes; return their offset."""
        at = self._at
        if count > self._end - at:
            limit = "its header may have" if self._end < self._size else "there are"
            raise file_error(
                self._path,
                f"is cut off: {what} at byte {at} takes {count} bytes, and {limit} {self._end}",
            )
        self._at = at + count
        return at

    def _number(self, num_bytes: int) -> int:
        at = self._take(num_bytes, "a number")
        return int.from_bytes(self._whole[at : at + num_bytes], "little")

    def _text(self, what: str) -> str:
        length = self._number(8)
        at = self._take(length, what)
        return self._whole[at : at + length].decode("utf-8", "replace")

    def _value(self, name: str, kind: int) -> Any:
        if kind == _STRING:
            return self._text(f"setting {printable(name)}")
        if kind == _LIST:
            return self._list(name, self._number(4), self._number(8))
        if kind not in _NUMBERS:
            raise file_error(self._path, f"gives setting {printable(name)} the unknown type {kind}")
        return self._numbers(name, kind, 1)[0].item()

    def _list(self, name: str, kind: int, count: int) -> Any:
        if kind in _NUMBERS:
            return self._numbers(name, kind, count)
        if kind != _STRING:
            raise file_error(
                self._path,
                f"has a list of type {kind} as {printable(name)}; expected lists of numbers or "
                "strings",
            )
        if count > min(MAX_STRINGS, (self._end - self._at) // _LENGTH.size):
            raise file_error(self._path, f"claims {count} strings in the list {printable(name)}")
        found = []
        whole = self._whole
        at = self._at
        end = self._end
        for _ in range(count):  # inlined: there are hundreds of thousands
            start = at + _LENGTH.size
            length = _LENGTH.unpack_from(whole, at)[0] if start <= end else 0
            if start > end or length > end - start:
                raise file_error(
                    self._path,
                    f"is cut off: a string of the list {printable(name)} takes {length} bytes at "
                    f"{at}",
                )
            at = start + length
            found.append(whole[start:at].decode("utf-8", "replace"))
        self._at = at
        return found

    def _numbers(self, name: str, kind: int, count: int) -> np.ndarray[Any, Any]:
        dtype = _NUMBERS[kind]
        at = self._take(count * dtype.itemsize, f"setting {printable(name)}")
        return np.frombuffer(self._whole[at : self._at], dtype)

    def _described(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        """Return name, shape, type and offset of the next tensor."""
        name = self._text("the name of a tensor")
        dimensions = self._number(4)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise file_error(self._path, f"gives tensor {printable(name)} {dimensions} dimensions")
        sizes = tuple(self._number(8) for _ in range(dimensions))
        number = self._number(4)
        offset = self._number(8)
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            known = ", ".join(each.name for each in TENSOR_TYPES.values())
            raise ModelError(
                f"{self._path} stores tensor {printable(name)} as type {number}; expected one of "
                f"{known}. Convert it."
            )
        if (
            not all(1 <= size <= LARGEST for size in sizes)
            or prod(sizes) > LARGEST
            or sizes[0] % kind.inputs
        ):
            raise file_error(
                self._path,
                f"gives tensor {printable(name)} of type {kind.name} the sizes {list(sizes)}",
            )
        return name, sizes[::-1], kind, offset

    def _positioned(
        self,
        described: list[tuple[str, tuple[int, ...], TensorType, int]],
        base: int,
        alignment: int,
    ) -> tuple[TensorEntry, ...]:
        """Return the tensors in data order. All lie inside the file, and none overlap."""
        found = [
            TensorEntry(
                name, kind, shape, base + offset, prod(shape) // kind.inputs * kind.num_bytes
            )
            for name, shape, kind, offset in described
        ]
        names = Counter(tensor.name for tensor in found)
        if len(names) < len(found):
            raise file_error(
                self._path, f"has the tensor {printable(names.most_common(1)[0][0])} twice"
            )
        found.sort(key=lambda tensor: tensor.start)
        for before, tensor in pairwise(found):
            if tensor.start < before.start + before.num_bytes:
                raise file_error(
                    self._path,
                    f"gives tensors {printable(before.name)} and {printable(tensor.name)} "
                    "the same bytes",
                )
        for tensor in found:
            if (tensor.start - base) % alignment:
                raise file_error(
                    self._path,
                    f"has tensor {printable(tensor.name)} at byte {tensor.start}, "
                    "off its alignment",
                )
            if tensor.start + tensor.num_bytes > self._size:
                end = tensor.start + tensor.num_bytes
                raise file_error(
                    self._path,
                    f"is cut off: tensor {printable(tensor.name)} ends at {end}, the file at "
                    f"{self._size}",
                )
        return tuple(found)


def file_error(path: Path, what: str) -> ModelError:
    """Return the error for an invalid file."""
    return ModelError(f"{path} {what}. {_ADVICE}")


def printable(name: str) -> str:
    """Return a name from a file, escaped for printing."""
    return repr(name) if name.isprintable() and len(name) <= 100 else ascii(name[:100])
