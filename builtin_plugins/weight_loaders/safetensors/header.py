"""Reads and validates the header of a safetensors file, without a tensor library.

A file is 8 bytes (header length, little endian), the header (JSON: name to dtype, shape and
offsets), and the data. Everything is validated before a tensor is created, because a bad offset
would read foreign memory or another tensor's weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Final

from builtin_plugins.weight_loaders.safetensors import json_header
from builtin_plugins.weight_loaders.safetensors.regular_file import open_regular
from core.api import ModelError

MAX_HEADER_BYTES: Final = 100_000_000
"""Header size limit of the format."""
MAX_DIMENSIONS: Final = 16
LARGEST: Final = 2**62
ITEM_BITS: Final = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
}
_ADVICE: Final = "Download the file again."


@dataclass(frozen=True, slots=True)
class Stored:
    """Location of one tensor in its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of the first byte in the file."""
    num_bytes: int


def read_header(path: Path) -> list[Stored]:
    """Return the tensors of a file by offset. Raises `ModelError` with the file and the error."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > MAX_HEADER_BYTES:
                raise _fault(
                    path, f"is no safetensors file: its header would take {length} bytes of {size}"
                )
            if 8 + length > size:
                raise _fault(
                    path, f"is cut off inside its header ({8 + length} bytes needed, {size} there)"
                )
            text = file.read(length)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        header = json_header.read_header(text)
    except ValueError as error:
        raise _fault(path, f"has a header that cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise _fault(path, "has a header that is no JSON object")
    header.pop("__metadata__", None)
    stored = [_stored(path, name, facts, 8 + length, size) for name, facts in header.items()]
    stored.sort(key=lambda tensor: (tensor.start, tensor.num_bytes))
    for before, tensor in pairwise(stored):
        if tensor.start < before.start + before.num_bytes:
            raise _fault(
                path, f"gives tensors {before.name!r:.100} and {tensor.name!r:.100} the same bytes"
            )
    return stored


def _stored(path: Path, name: str, facts: Any, base: int, size: int) -> Stored:
    try:
        dtype = facts["dtype"]
        shape = tuple(facts["shape"])
        start, end = facts["data_offsets"]
        good = isinstance(dtype, str) and len(shape) <= MAX_DIMENSIONS
        good = good and all(type(n) is int and 0 <= n <= LARGEST for n in (*shape, start, end))
        good = (
            good and prod(n or 1 for n in shape) <= LARGEST
        )  # strides are computed even if a size is 0
    except (TypeError, KeyError, ValueError) as error:
        raise _fault(path, f"describes tensor {name!r:.100} as {facts!r:.100}") from error
    if not good:
        raise _fault(path, f"describes tensor {name!r:.100} as {facts!r:.100}")
    if dtype not in ITEM_BITS:
        raise ModelError(
            f"{path} stores tensor {name!r:.100} as {dtype!r:.20}, which is not one of "
            f"{', '.join(ITEM_BITS)}."
        )
    needed = prod(shape) * ITEM_BITS[dtype] // 8
    if end - start != needed:
        raise _fault(
            path,
            f"gives tensor {name!r:.100} {end - start} bytes, its shape {list(shape)} needs "
            f"{needed}",
        )
    if base + end > size:
        raise _fault(
            path, f"is cut off: tensor {name!r:.100} ends at byte {base + end}, the file at {size}"
        )
    return Stored(name, dtype, shape, base + start, needed)


def _fault(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} {what}. {_ADVICE}")
