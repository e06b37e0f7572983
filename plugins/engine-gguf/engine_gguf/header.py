"""Reads and checks what stands before the data of a GGUF file. Knows bytes, no model.

A file is "GGUF", a version, counts of tensors and settings, the settings (name, type, value), the
tensors (name, sizes, type, offset), and from the next multiple of the alignment on the data. All
numbers are little endian. Everything is checked against the bytes that there are before anything is
made of it, because a length that is merely wrong would take all memory, and an offset that is would
read another tensor's weights.
"""

from __future__ import annotations

import mmap
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
from engine_gguf.kinds import KINDS, Kind

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT: Final = 32
MAX_HEADER_BYTES: Final = 1 << 28
MAX_STRINGS: Final = 1 << 22
"""In one list; the largest vocabularies have a sixteenth of it."""
MAX_SETTINGS: Final = 1 << 16
MAX_DIMENSIONS: Final = 4
LARGEST: Final = 2**62
_STRING: Final = 8
_LIST: Final = 9
_NUMBERS: Final = {
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
"""Types of settings."""
_ADVICE: Final = "Download the file again."
_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Stored:
    """Where one tensor lies in its file."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    """Of its numbers, rows first, as torch counts."""
    start: int
    """First byte, counted from the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself."""

    path: Path
    settings: Mapping[str, Any]
    """Numbers, texts, lists of texts, and numpy arrays of numbers."""
    tensors: tuple[Stored, ...]
    """In the order of their data."""


def read_header(path: Path) -> Header:
    """Return the header of a file. Raises `ModelError` naming file and fault."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < len(MAGIC) + 20 or file.read(len(MAGIC)) != MAGIC:
                raise fault(path, f"is no GGUF file: it has {size} bytes and does not begin as one")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                return _Reader(path, whole, size).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


class _Reader:
    """Goes through a header from its beginning to its end."""

    def __init__(self, path: Path, whole: mmap.mmap, size: int) -> None:
        self._path = path
        self._whole = whole
        self._size = size
        self._end = min(size, MAX_HEADER_BYTES)
        self._at = len(MAGIC)

    def header(self) -> Header:
        version = self._number(4)
        if version not in VERSIONS:
            raise fault(
                self._path, f"has version {version}; versions 2 and 3, little endian, are read"
            )
        num_tensors = self._number(8)
        num_settings = self._number(8)
        if num_settings > MAX_SETTINGS or num_tensors > (self._end - self._at) // 24:
            raise fault(self._path, f"claims {num_tensors} tensors and {num_settings} settings")
        settings: dict[str, Any] = {}
        for _ in range(num_settings):
            name = self._text("the name of a setting")
            if name in settings:
                raise fault(self._path, f"has the setting {shown(name)} twice")
            settings[name] = self._value(name, self._number(4))
        described = [self._described() for _ in range(num_tensors)]
        alignment = settings.get("general.alignment", ALIGNMENT)
        if (
            type(alignment) is not int
            or not 1 <= alignment <= 1 << 20
            or alignment & (alignment - 1)
        ):
            raise fault(self._path, f"has the alignment {alignment!r:.40}")
        base = -(-self._at // alignment) * alignment
        return Header(self._path, settings, self._placed(described, base, alignment))

    def _take(self, count: int, what: str) -> int:
        """Go over so many bytes; return where they begin."""
        at = self._at
        if count > self._end - at:
            limit = "its header may have" if self._end < self._size else "there are"
            raise fault(
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
            return self._text(f"setting {shown(name)}")
        if kind == _LIST:
            return self._list(name, self._number(4), self._number(8))
        if kind not in _NUMBERS:
            raise fault(
                self._path, f"gives setting {shown(name)} the type {kind}, which there is not"
            )
        return self._numbers(name, kind, 1)[0].item()

    def _list(self, name: str, kind: int, count: int) -> Any:
        if kind in _NUMBERS:
            return self._numbers(name, kind, count)
        if kind != _STRING:
            raise fault(
                self._path,
                f"has a list of type {kind} as {shown(name)}; lists of numbers and texts are read",
            )
        if count > min(MAX_STRINGS, (self._end - self._at) // _LENGTH.size):
            raise fault(self._path, f"claims {count} texts in the list {shown(name)}")
        found = []
        whole = self._whole
        at = self._at
        end = self._end
        for _ in range(count):  # without a call for each: there are hundreds of thousands
            start = at + _LENGTH.size
            length = _LENGTH.unpack_from(whole, at)[0] if start <= end else 0
            if start > end or length > end - start:
                raise fault(
                    self._path,
                    f"is cut off: a text of the list {shown(name)} takes {length} bytes at {at}",
                )
            at = start + length
            found.append(whole[start:at].decode("utf-8", "replace"))
        self._at = at
        return found

    def _numbers(self, name: str, kind: int, count: int) -> np.ndarray[Any, Any]:
        dtype = _NUMBERS[kind]
        at = self._take(count * dtype.itemsize, f"setting {shown(name)}")
        return np.frombuffer(self._whole[at : self._at], dtype)

    def _described(self) -> tuple[str, tuple[int, ...], Kind, int]:
        """Return name, shape, type and offset of the next tensor."""
        name = self._text("the name of a tensor")
        dimensions = self._number(4)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise fault(self._path, f"gives tensor {shown(name)} {dimensions} dimensions")
        sizes = tuple(self._number(8) for _ in range(dimensions))
        number = self._number(4)
        offset = self._number(8)
        kind = KINDS.get(number)
        if kind is None:
            known = ", ".join(each.name for each in KINDS.values())
            raise ModelError(
                f"{self._path} stores tensor {shown(name)} as type {number}, which is not one of "
                f"{known}. Convert it."
            )
        if (
            not all(1 <= size <= LARGEST for size in sizes)
            or prod(sizes) > LARGEST
            or sizes[0] % kind.inputs
        ):
            raise fault(
                self._path,
                f"gives tensor {shown(name)} of type {kind.name} the sizes {list(sizes)}",
            )
        return name, sizes[::-1], kind, offset

    def _placed(
        self, described: list[tuple[str, tuple[int, ...], Kind, int]], base: int, alignment: int
    ) -> tuple[Stored, ...]:
        """Return the tensors in the order of their data, all of which is in the file and none of
        which is shared.
        """
        found = [
            Stored(name, kind, shape, base + offset, prod(shape) // kind.inputs * kind.num_bytes)
            for name, shape, kind, offset in described
        ]
        names = Counter(tensor.name for tensor in found)
        if len(names) < len(found):
            raise fault(self._path, f"has the tensor {shown(names.most_common(1)[0][0])} twice")
        found.sort(key=lambda tensor: tensor.start)
        for before, tensor in pairwise(found):
            if tensor.start < before.start + before.num_bytes:
                raise fault(
                    self._path,
                    f"gives tensors {shown(before.name)} and {shown(tensor.name)} the same bytes",
                )
        for tensor in found:
            if (tensor.start - base) % alignment:
                raise fault(
                    self._path,
                    f"has tensor {shown(tensor.name)} at byte {tensor.start}, off its alignment",
                )
            if tensor.start + tensor.num_bytes > self._size:
                end = tensor.start + tensor.num_bytes
                raise fault(
                    self._path,
                    f"is cut off: tensor {shown(tensor.name)} ends at {end}, the file at "
                    f"{self._size}",
                )
        return tuple(found)


def fault(path: Path, what: str) -> ModelError:
    """Return the error for a file that is not what it should be."""
    return ModelError(f"{path} {what}. {_ADVICE}")


def shown(name: str) -> str:
    """Return a name from a file so that it can be printed."""
    return repr(name) if name.isprintable() and len(name) <= 100 else ascii(name[:100])
