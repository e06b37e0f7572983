"""Writes safetensors files tensor by tensor, with one weight in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}
FILE_BYTES: Final = 4 << 30
"""Shard size; a file ends with the tensor that reaches it."""
INDEX: Final = "model.safetensors.index.json"
PART: Final = ".part"
"""Suffix of a file that is being written."""
ALIGNED: Final = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Name, dtype and shape of an output tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def split_into_files(pieces: Iterable[Piece], file_bytes: int = FILE_BYTES) -> list[list[Piece]]:
    """Return the tensors of each file in order."""
    files: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if size >= file_bytes:
            files.append([])
            size = 0
        files[-1].append(piece)
        size += piece.num_bytes
    return files


def write(
    folder: Path, files: Sequence[Sequence[Piece]], tensors: Iterator[tuple[str, torch.Tensor]]
) -> None:
    """Write the shards and, for several, their index. `tensors` come in the order of the pieces.

    Files get their final names when all are complete, so an interrupted run leaves no valid
    checkpoint.
    """
    names = [_name(index, len(files)) for index in range(len(files))]
    for name, pieces in zip(names, files, strict=True):
        with ExitStack() as stack:
            file = stack.enter_context((folder / (name + PART)).open("wb"))
            file.write(_header(pieces))
            for piece in pieces:
                found, tensor = next(tensors)
                if (found, tensor.dtype, tuple(tensor.shape)) != (
                    piece.name,
                    piece.dtype,
                    piece.shape,
                ):
                    raise AssertionError(
                        f"{found}: {tensor.dtype} {list(tensor.shape)} instead of {piece}"
                    )
                if tensor.numel():
                    file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    for name in names:
        (folder / (name + PART)).rename(folder / name)
    if len(files) > 1:
        weight_map = {
            piece.name: name for name, pieces in zip(names, files, strict=True) for piece in pieces
        }
        total = sum(piece.num_bytes for pieces in files for piece in pieces)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _name(index: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"


def _header(pieces: Sequence[Piece]) -> bytes:
    facts: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for piece in pieces:
        end = start + piece.num_bytes
        facts[piece.name] = {
            "dtype": NAMES[piece.dtype],
            "shape": list(piece.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(facts, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text
