"""Reads an adapter's two files: checks sizes, then hashes them and checks that numbers are finite.

Independent of tensor libraries and models.
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

from builtin_plugins.weight_loaders.api import open_regular, read_header

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
PICKLED: Final = ("adapter_model.bin", "adapter_model.pt")
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_HEADER_BYTES: Final = 32 << 20
"""Maximum size of the header, in bytes; a hundred thousand tensor names take less."""
MAX_NAME_LENGTH: Final = 1000
"""Of a tensor, in characters; matching patterns takes time quadratic in it."""
CHUNK_BYTES: Final = 1 << 20
RawBits = npt.NDArray[Any]
ITEM: Final[Mapping[str, tuple[str, int]]] = {
    "F64": ("<u8", 0x7FF0 << 48),
    "F32": ("<u4", 0x7F80 << 16),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""By dtype: integer dtype of the same size, and exponent bits (all set in non-finite numbers)."""


class BadAdapter(ValueError):
    """An adapter cannot be served: the reason and an action."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Name, dtype, shape and position of one tensor in the weights file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter's folder, with its headers read."""

    folder: Path
    config: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    config_text: bytes

    @classmethod
    def read(cls, folder: Path, max_bytes: int) -> AdapterFiles:
        """Read both headers. Raises `BadAdapter`."""
        text = _read_config(folder)
        try:
            config = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadAdapter(
                f"{CONFIG}: expected JSON ({error}). Save the adapter again."
            ) from error
        if not isinstance(config, dict):
            raise BadAdapter(f"{CONFIG}: expected a JSON object. Save the adapter again.")
        return cls(folder, config, _read_header(folder, max_bytes), text)

    def digest(self, tensors: dict[str, RawBits] | None = None) -> bytes:
        """Return the hash of both files; all numbers are checked to be finite. Raises `BadAdapter`.

        Stores the bits of each tensor in `tensors`, if given, as integers of the size of its
        numbers.
        """
        found = hashlib.sha256(len(self.config_text).to_bytes(8, "little") + self.config_text)
        path = self.folder / WEIGHTS
        at = 0
        try:
            with open_regular(path) as file:
                for tensor in self.tensors:
                    found.update(file.read(tensor.start - at))
                    whole = bytearray(0 if tensors is None else tensor.num_bytes)
                    for offset, piece in _pieces(file, tensor):
                        found.update(piece)
                        _check_finite(tensor, piece)
                        if tensors is not None:
                            whole[offset : offset + len(piece)] = piece
                    if tensors is not None:
                        tensors[tensor.name] = np.frombuffer(
                            whole, dtype=ITEM[tensor.dtype][0]
                        ).reshape(tensor.shape)
                    at = tensor.start + tensor.num_bytes
        except OSError as error:
            raise BadAdapter(f"{WEIGHTS} cannot be read: {error.strerror}.") from error
        return found.digest()


def _read_config(folder: Path) -> bytes:
    try:
        with open_regular(folder / CONFIG) as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise BadAdapter(
            f"no LoRA adapter found: {CONFIG} cannot be read ({error.strerror})."
        ) from error
    if len(text) > MAX_CONFIG_BYTES:
        raise BadAdapter(
            f"{CONFIG}: got more than {MAX_CONFIG_BYTES} bytes. Save the adapter again."
        )
    return text


def _read_header(folder: Path, max_bytes: int) -> tuple[TensorEntry, ...]:
    path = folder / WEIGHTS
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size > max_bytes:
                raise BadAdapter(
                    f"{WEIGHTS} has {size} bytes; --max-lora-bytes allows {max_bytes}."
                )
            if length > MAX_HEADER_BYTES or 8 + length > size:
                raise BadAdapter(
                    f"{WEIGHTS} is not a safetensors file: its header has {length} bytes of "
                    f"{size}; expected up to {MAX_HEADER_BYTES}. Save the adapter again."
                )
            text = file.read(length)
    except FileNotFoundError:
        pickled = next((name for name in PICKLED if (folder / name).exists()), None)
        if pickled:
            raise BadAdapter(
                f"{pickled} is a pickle, which may run any code when loaded; save the "
                f"adapter as {WEIGHTS} (save_pretrained(..., safe_serialization=True))."
            ) from None
        raise BadAdapter(f"no LoRA adapter found: {WEIGHTS} is missing.") from None
    except OSError as error:
        raise BadAdapter(f"{WEIGHTS} cannot be read: {error.strerror}.") from error
    try:
        header = read_header(text)
        header.pop("__metadata__", None)
        found = [_stored(str(name), facts, 8 + length, size) for name, facts in header.items()]
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        if isinstance(error, BadAdapter):
            raise
        raise BadAdapter(
            f"{WEIGHTS} has a header that cannot be read ({error}). Save the adapter again."
        ) from error
    found.sort(key=lambda tensor: tensor.start)
    for before, after in pairwise(found):
        if before.start + before.num_bytes > after.start:
            raise BadAdapter(
                f"{WEIGHTS} gives {before.name!r:.100} and {after.name!r:.100} the same bytes."
            )
    return tuple(found)


def _stored(name: str, facts: Mapping[str, Any], base: int, size: int) -> TensorEntry:
    if len(name) > MAX_NAME_LENGTH:
        raise BadAdapter(
            f"{WEIGHTS}: {name!r:.100}: got a name of {len(name)} characters; expected up to "
            f"{MAX_NAME_LENGTH}. Save the adapter again."
        )
    dtype = facts["dtype"]
    shape = tuple(facts["shape"])
    start, end = facts["data_offsets"]
    if dtype not in ITEM:
        raise BadAdapter(
            f"{WEIGHTS}: {name!r:.100}: got dtype {dtype!r:.20}; expected one of {', '.join(ITEM)}."
        )
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, start, end)) or len(shape) > 4:
        raise BadAdapter(
            f"{WEIGHTS}: {name!r:.100}: got {facts!r:.100}; expected a valid shape and offsets."
        )
    needed = math.prod(shape) * np.dtype(ITEM[dtype][0]).itemsize
    if end - start != needed or base + end > size:
        raise BadAdapter(
            f"{WEIGHTS} gives {name!r:.100} the bytes {start} to {end} of {size - base}; its shape "
            f"{list(shape)} needs "
            f"{needed}. The file is cut off or damaged; copy it again."
        )
    return TensorEntry(name, dtype, shape, base + start, needed)


def _pieces(file: Any, tensor: TensorEntry) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < tensor.num_bytes:
        piece = file.read(min(tensor.num_bytes - at, CHUNK_BYTES))
        if not piece:
            raise BadAdapter(f"{WEIGHTS} is cut off inside {tensor.name!r:.100}; copy it again.")
        yield at, piece
        at += len(piece)


def _check_finite(tensor: TensorEntry, piece: bytes) -> None:
    kind, exponent = ITEM[tensor.dtype]
    if ((np.frombuffer(piece, dtype=kind) & exponent) == exponent).any():
        raise BadAdapter(
            f"{tensor.name!r:.200} has numbers that are not finite (NaN or infinite). Train it "
            "again."
        )
