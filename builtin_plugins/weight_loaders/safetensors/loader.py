"""Streams a checkpoint's safetensors files as memory-mapped tensors, without a copy until use.

A tensor that the model uses as it is stays part of the file; a copied one releases its pages at
once. So loading takes little more memory than the model, while the system reads ahead. A tensor
exists twice during a copy, so large tensors come first, when little else is loaded.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

from builtin_plugins.model_sources.api import read_settings_json
from builtin_plugins.weight_loaders.safetensors.header import Stored, read_header
from builtin_plugins.weight_loaders.safetensors.regular_file import open_regular
from core.api import EngineConfig, ModelError
from core.api.models import ModelSource

_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = 64 << 20
"""Size limit of an index; half a million tensors take less."""
AHEAD_BYTES: Final = 1 << 28
"""Bytes of read-ahead into the page cache."""
LARGE: Final = 10
"""A tensor of more than 1/LARGE of its file is large."""
POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14: maps the pages of a range without single page faults."""
_UNSAFE: Final = (".bin", ".pt", ".pth", ".ckpt")


class SafetensorsLoader:
    """The tensors of a checkpoint folder, file by file: large ones first, then by offset."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        del config  # files are found by the source
        if source.path is None:
            raise ModelError(
                f"{source.name!r} has no folder to read weights from; choose a --load-format that "
                "needs none."
            )
        folder = Path(source.path)
        self._files = [("", path) for path in weight_files(folder)]
        if source.sentence is not None:  # dense layers have their own folders
            for name in dict.fromkeys(
                dense.name.partition(".")[0] for dense in source.sentence.dense
            ):
                self._files += [(f"{name}.", path) for path in weight_files(folder / name)]
        self._indices: dict[Path, Mapping[str, str]] = {}
        self.reading: Path | None = None
        """File that `tensors` is reading."""
        self._reads: Callable[[str], bool] = lambda name: True

    def select(self, reads: Callable[[str], bool]) -> None:
        """Set which tensors `tensors` reads; the others are yielded on the meta device."""
        self._reads = reads

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor), memory-mapped copy-on-write."""
        for prefix, path in self._files:
            stored = self._stored(path)
            self.reading = path
            own = [each for each in stored if self._reads(prefix + each.name)]
            read = {each.name for each in own}
            for each in stored:
                if each.name not in read:
                    yield prefix + each.name, _without_data(each)
            if not own:
                continue
            for name, tensor in _mapped(path, own):
                yield prefix + name, tensor
                del tensor  # frees its pages before the next one is copied

    def headers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, meta tensor): names, dtypes and shapes only."""
        for prefix, path in self._files:
            for tensor in self._stored(path):
                yield prefix + tensor.name, _without_data(tensor)

    def _stored(self, path: Path) -> list[Stored]:
        """Return the tensors to read from a file: of a tensor in several files, the index decides
        which one.
        """
        stored = read_header(path)
        located = self._located(path.parent)
        elsewhere = {
            located[each.name] for each in stored if located.get(each.name, path.name) != path.name
        }
        if not elsewhere:
            return stored
        names = {
            name: {each.name for each in read_header(path.parent / name)} for name in elsewhere
        }
        return [
            each
            for each in stored
            if each.name not in names.get(located.get(each.name, path.name), ())
        ]

    def _located(self, folder: Path) -> Mapping[str, str]:
        if folder not in self._indices:
            index = folder / INDEX
            self._indices[folder] = read_index(index) if index.is_file() else {}
        return self._indices[folder]

    def total_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for _, path in self._files)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint. Raises `ModelError` for missing files."""
    index = folder / INDEX
    if index.is_file():
        shards = sorted(set(read_index(index).values()))
        outside = [name for name in shards if Path(name).name != name]
        if outside:
            raise ModelError(
                f"{index} names weight files outside its folder; such a checkpoint is not read."
            )
        # `Path.is_file` raises for names that are too long for a file.
        missing = [name for name in shards if not os.path.isfile(folder / name)]
        if missing:
            raise ModelError(
                f"{len(missing)} of {len(shards)} weight files named in {index} are missing: "
                f"{', '.join(f'{name:.100}' for name in missing[:6])}. "
                "Download them again."
            )
        return [folder / name for name in shards]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if found:
        return found
    pickled = (
        sorted(path.name for path in folder.iterdir() if path.suffix in _UNSAFE)
        if folder.is_dir()
        else []
    )
    if pickled:
        raise ModelError(
            f"{folder} has its weights only as {pickled[0]}, a format that can run code while it "
            "is read. Convert them: "
            "load the model with transformers, then model.save_pretrained(folder, "
            "safe_serialization=True)."
        )
    raise ModelError(
        f"{folder} holds no *.safetensors file. Download the weights, or use --load-format dummy."
    )


def read_index(index: Path) -> Mapping[str, str]:
    """Return the file of each tensor. Raises `ModelError` for a broken index."""
    value = read_settings_json(index, MAX_INDEX_BYTES)
    try:
        located = value["weight_map"]
        if all(isinstance(name, str) for name in located.values()):
            return dict(located)
        error: Exception = TypeError("a file name is no text")
    except (KeyError, TypeError, AttributeError) as found:
        error = found
    raise ModelError(
        f"{index} is no index of weight files ({error!r}). Download it again."
    ) from error


def _mapped(path: Path, stored: list[Stored]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of one file, which stays mapped while one of them is referenced."""
    large = sum(tensor.num_bytes for tensor in stored) // LARGE
    end = max(tensor.start + tensor.num_bytes for tensor in stored)
    with open_regular(path) as file:
        whole = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_COPY)
        ordered = sorted(stored, key=lambda tensor: -max(tensor.num_bytes, large))
        following = deque(ordered)
        ahead = 0
        for tensor in ordered:
            while following and ahead < AHEAD_BYTES:
                ahead += following[0].num_bytes
                _read_ahead(file.fileno(), following.popleft())
            yield tensor.name, _view(whole, tensor)
            ahead -= tensor.num_bytes


def _read_ahead(file: int, stored: Stored) -> None:
    """Start read-ahead of a tensor, if the system supports it."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, stored.start, stored.num_bytes, os.POSIX_FADV_WILLNEED)


def _without_data(stored: Stored) -> torch.Tensor:
    return torch.empty(stored.shape, dtype=_DTYPES[stored.dtype], device="meta")


def _view(whole: mmap.mmap, stored: Stored) -> torch.Tensor:
    """Return a view of the file's bytes; its pages are released with the last reference."""
    dtype = _DTYPES[stored.dtype]
    if not stored.num_bytes:
        return torch.empty(stored.shape, dtype=dtype)
    end = stored.start + stored.num_bytes
    first = stored.start // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, ValueError):  # not supported by the system; pages fault on access
        whole.madvise(POPULATE_READ, first, end - first)
    part = memoryview(whole)[stored.start : end]
    weakref.finalize(part, _release, whole, stored.start, end).atexit = False
    data = torch.frombuffer(part, dtype=torch.uint8)
    if stored.start % dtype.itemsize:
        data = data.clone()  # a view must be aligned to its dtype
    return data.view(dtype).view(stored.shape)


def _release(whole: mmap.mmap, start: int, end: int) -> None:
    """Release the pages that hold only these bytes."""
    page = mmap.PAGESIZE
    first = -(-start // page) * page
    last = end // page * page
    if first < last and hasattr(whole, "madvise"):
        whole.madvise(mmap.MADV_DONTNEED, first, last - first)
