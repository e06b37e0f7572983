"""Reads an adapter's two files: limits first, then every byte once, for its hash and for numbers
that are none.

Knows bytes and JSON; no tensor library, no model.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from builtin_plugins.output_parsers.runtime.headers import read_header

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
PICKLED: Final = ("adapter_model.bin", "adapter_model.pt")
MOST_CONFIG_BYTES: Final = 1 << 20
MOST_HEADER_BYTES: Final = 32 << 20
"""A hundred thousand tensors' names take less."""
PIECE_BYTES: Final = 1 << 20
Bits = npt.NDArray[Any]
ITEM: Final[Mapping[str, tuple[str, int]]] = {
    "F64": ("<u8", 0x7FF0 << 48),
    "F32": ("<u4", 0x7F80 << 16),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""By dtype: integers of its size, and the bits of the exponent, which are all set in what is no
finite number.
"""


class BadAdapter(ValueError):
    """An adapter cannot be served: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where one tensor lies in the file of weights."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter as it lies in its folder, its headers read."""

    folder: Path
    config: Mapping[str, Any]
    tensors: tuple[Stored, ...]
    config_text: bytes

    @classmethod
    def of(cls, folder: Path, most_bytes: int) -> AdapterFiles:
        """Read both headers. Raises `BadAdapter`."""
        text = _read_config(folder)
        try:
            config = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadAdapter(
                f"{folder / CONFIG} is no JSON ({error}); save the adapter again."
            ) from error
        if not isinstance(config, dict):
            raise BadAdapter(f"{folder / CONFIG} is no JSON object; save the adapter again.")
        return cls(folder, config, _read_header(folder, most_bytes), text)

    def digest(self, kept: dict[str, Bits] | None = None) -> bytes:
        """Return the hash of both files, having made sure that all numbers are finite. Raises
        `BadAdapter`.

        What is read goes into `kept`, where there is one: the bits of each tensor, as integers of
        the size of its numbers.
        """
        found = hashlib.sha256(len(self.config_text).to_bytes(8, "little") + self.config_text)
        path = self.folder / WEIGHTS
        at = 0
        try:
            with path.open("rb") as file:
                for tensor in self.tensors:
                    found.update(file.read(tensor.start - at))
                    whole = bytearray(0 if kept is None else tensor.num_bytes)
                    for offset, piece in _pieces(file, tensor):
                        found.update(piece)
                        _check_finite(tensor, piece)
                        if kept is not None:
                            whole[offset : offset + len(piece)] = piece
                    if kept is not None:
                        kept[tensor.name] = np.frombuffer(
                            whole, dtype=ITEM[tensor.dtype][0]
                        ).reshape(tensor.shape)
                    at = tensor.start + tensor.num_bytes
        except OSError as error:
            raise BadAdapter(f"{path} cannot be read: {error.strerror or error}.") from error
        return found.digest()


def _read_config(folder: Path) -> bytes:
    path = folder / CONFIG
    try:
        size = path.stat().st_size
        if size > MOST_CONFIG_BYTES:
            raise BadAdapter(
                f"{path} has {size} bytes; more than {MOST_CONFIG_BYTES} are not read."
            )
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise BadAdapter(
            f"{folder} holds no LoRA adapter: {CONFIG} cannot be read ({reason})."
        ) from error


def _read_header(folder: Path, most_bytes: int) -> tuple[Stored, ...]:
    path = folder / WEIGHTS
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size > most_bytes:
                raise BadAdapter(f"{path} has {size} bytes; --max-lora-bytes allows {most_bytes}.")
            if length > MOST_HEADER_BYTES or 8 + length > size:
                raise BadAdapter(
                    f"{path} is no safetensors file: its header would take {length} bytes of "
                    f"{size}, and more than "
                    f"{MOST_HEADER_BYTES} are not read. Save the adapter again."
                )
            text = file.read(length)
    except FileNotFoundError:
        pickled = next((name for name in PICKLED if (folder / name).exists()), None)
        if pickled:
            raise BadAdapter(
                f"{folder / pickled} is a pickle, which may run any code when it is read; save the "
                "adapter as "
                f"{WEIGHTS} (save_pretrained(..., safe_serialization=True))."
            ) from None
        raise BadAdapter(f"{folder} holds no LoRA adapter: {WEIGHTS} is missing.") from None
    except OSError as error:
        raise BadAdapter(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        header = read_header(text)
        header.pop("__metadata__", None)
        found = [
            _stored(path, str(name), facts, 8 + length, size) for name, facts in header.items()
        ]
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        if isinstance(error, BadAdapter):
            raise
        raise BadAdapter(
            f"{path} has a header that cannot be read ({error}); save the adapter again."
        ) from error
    found.sort(key=lambda tensor: tensor.start)
    for before, after in pairwise(found):
        if before.start + before.num_bytes > after.start:
            raise BadAdapter(
                f"{path} gives {before.name!r:.100} and {after.name!r:.100} the same bytes."
            )
    return tuple(found)


def _stored(path: Path, name: str, facts: Mapping[str, Any], base: int, size: int) -> Stored:
    dtype, shape, (start, end) = facts["dtype"], tuple(facts["shape"]), facts["data_offsets"]
    if dtype not in ITEM:
        raise BadAdapter(
            f"{path} stores {name!r:.100} as {dtype!r:.20}; served are {', '.join(ITEM)}."
        )
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, start, end)) or len(shape) > 4:
        raise BadAdapter(f"{path} describes {name!r:.100} as {facts!r:.100}.")
    needed = math.prod(shape) * np.dtype(ITEM[dtype][0]).itemsize
    if end - start != needed or base + end > size:
        raise BadAdapter(
            f"{path} gives {name!r:.100} the bytes {start} to {end} of {size - base}; its shape "
            f"{list(shape)} needs "
            f"{needed}. The file is cut off or damaged; copy it again."
        )
    return Stored(name, dtype, shape, base + start, needed)


def _pieces(file: Any, tensor: Stored) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < tensor.num_bytes:
        piece = file.read(min(tensor.num_bytes - at, PIECE_BYTES))
        if not piece:
            raise BadAdapter(f"{WEIGHTS} is cut off inside {tensor.name!r:.100}; copy it again.")
        yield at, piece
        at += len(piece)


def _check_finite(tensor: Stored, piece: bytes) -> None:
    kind, exponent = ITEM[tensor.dtype]
    if ((np.frombuffer(piece, dtype=kind) & exponent) == exponent).any():
        raise BadAdapter(
            f"{tensor.name!r:.200} holds numbers that are not finite (NaN or infinite); train it "
            "again."
        )
