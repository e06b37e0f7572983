"""Streams a checkpoint's safetensors files as memory-mapped tensors: nothing is copied before it is used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from builtin_plugins.weight_loaders.safetensors.header import Stored, read_header
from core.api import EngineConfig, ModelError, ModelSource

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
}
SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_UNSAFE: Final = (".bin", ".pt", ".pth", ".ckpt")


class SafetensorsLoader:
    """The tensors of one checkpoint folder, file by file in the order of their bytes."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        del config  # the source says where the files are
        if source.path is None:
            raise ModelError(
                f"{source.name!r} has no folder to read weights from; choose a --load-format that needs none."
            )
        folder = Path(source.path)
        self._files = [("", path) for path in weight_files(folder)]
        if source.sentence is not None:  # layers behind the model have folders of their own
            for name in dict.fromkeys(dense.name.partition(".")[0] for dense in source.sentence.dense):
                self._files += [(f"{name}.", path) for path in weight_files(folder / name)]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor); a tensor's memory is the file's, private to this process if written to."""
        for prefix, path in self._files:
            stored = read_header(path)
            if not stored:
                continue
            storage: Any = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size)
            for tensor in stored:
                yield prefix + tensor.name, _view(storage, tensor)

    def total_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for _, path in self._files)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint. Raises `ModelError` naming what is missing."""
    index = folder / INDEX
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            outside = [name for name in shards if Path(name).name != name]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(f"{index} is no index of weight files ({error!r}). Download it again.") from error
        if outside:
            raise ModelError(f"{index} names weight files outside its folder; such a checkpoint is not read.")
        missing = [name for name in shards if not (folder / name).is_file()]
        if missing:
            raise ModelError(
                f"{len(missing)} of {len(shards)} weight files named in {index} are missing: {', '.join(missing[:6])}. "
                "Download them again."
            )
        return [folder / name for name in shards]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if found:
        return found
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _UNSAFE) if folder.is_dir() else []
    if pickled:
        raise ModelError(
            f"{folder} has its weights only as {pickled[0]}, a format that can run code while it is read. Convert them: "
            "load the model with transformers, then model.save_pretrained(folder, safe_serialization=True)."
        )
    raise ModelError(f"{folder} holds no *.safetensors file. Download the weights, or use --load-format dummy.")


def _view(storage: Any, stored: Stored) -> torch.Tensor:
    dtype = _DTYPES[stored.dtype]
    item = dtype.itemsize
    if stored.start % item == 0:
        whole = torch.empty(0, dtype=dtype)
        return whole.set_(storage, stored.start // item, stored.shape)  # type: ignore[call-overload,no-any-return,unused-ignore]
    data = torch.empty(0, dtype=torch.uint8)
    data.set_(storage, stored.start, (stored.num_bytes,))  # type: ignore[call-overload,unused-ignore]
    return data.clone().view(dtype).view(stored.shape)  # a view must start at a multiple of its item
