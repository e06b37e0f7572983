"""Broken and hostile files: one clear error, no crash, and bounded memory."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_gguf.header import read_header
from engine_gguf.loader import GgufLoader
from engine_gguf.source import find

from core.api import ModelError
from core.config.build import config_from_kwargs

MUTATIONS = 2000
MAX_MEMORY = 1 << 26
Made = Callable[..., tuple[Path, Path]]


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def setting(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, sizes: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def file_of(
    settings: list[bytes],
    tensors: list[bytes],
    data: int = 64,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(settings))
    head = magic + counts + b"".join(settings) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


NAME = setting(b"general.architecture", 8, text(b"llama"))
BROKEN = {
    "empty": (b"", "is not a GGUF file"),
    "magic": (file_of([NAME], [], magic=b"GGML"), "is not a GGUF file"),
    "version": (file_of([NAME], [], version=1), "has version 1"),
    "big endian": (file_of([NAME], [], version=3 << 24), "little endian"),
    "settings": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(64), "settings"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(64), "tensors"),
    "text": (file_of([setting(b"a", 8, struct.pack("<Q", 2**60))], []), "is cut off"),
    "list": (file_of([setting(b"a", 9, struct.pack("<IQ", 4, 2**60))], []), "is cut off"),
    "texts": (file_of([setting(b"a", 9, struct.pack("<IQ", 8, 2**60))], []), "claims"),
    "long text in a list": (
        file_of([setting(b"a", 9, struct.pack("<IQQ", 8, 1, 2**60))], []),
        "is cut off",
    ),
    "list of lists": (
        file_of([setting(b"a", 9, struct.pack("<IQ", 9, 1))], []),
        "lists of numbers or strings",
    ),
    "type of a setting": (file_of([setting(b"a", 77, bytes(8))], []), "unknown type"),
    "twice": (file_of([NAME, NAME], []), "has the setting 'general.architecture' twice"),
    "alignment": (
        file_of([setting(b"general.alignment", 4, struct.pack("<I", 7))], []),
        "alignment 7",
    ),
    "type of a tensor": (file_of([], [tensor(b"a", [32], 99, 0)]), "type 99"),
    "no dimensions": (file_of([], [tensor(b"a", [], 0, 0)]), "0 dimensions"),
    "dimensions": (file_of([], [tensor(b"a", [1] * 5, 0, 0)]), "5 dimensions"),
    "size": (file_of([], [tensor(b"a", [2**60, 2**60], 0, 0)]), "the sizes"),
    "no size": (file_of([], [tensor(b"a", [0], 0, 0)]), "the sizes"),
    "half a block": (file_of([], [tensor(b"a", [33], 8, 0)]), "the sizes"),
    "outside": (file_of([], [tensor(b"a", [32], 0, 2**40)]), "is cut off"),
    "overlap": (file_of([], [tensor(b"a", [8], 0, 0), tensor(b"b", [8], 0, 0)]), "the same bytes"),
    "off": (file_of([], [tensor(b"a", [4], 0, 4)]), "off its alignment"),
    "one name": (
        file_of([], [tensor(b"a", [8], 0, 0), tensor(b"a", [8], 0, 32)]),
        "has the tensor 'a' twice",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_rejected_with_reason(name: str, tmp_path: Path) -> None:
    content, wrong = BROKEN[name]
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ModelError, match=wrong) as caught:
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
    ],
    ids=["FIFO", "folder", "device", "loop"],
)
def test_path_that_is_no_regular_file_is_refused(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "a.gguf"
    make(path)
    with pytest.raises(ModelError, match=r"a\.gguf cannot be read"):
        read_header(path)


def read_all(path: Path) -> None:
    """Read everything in a file that precedes inference."""
    config: Any = config_from_kwargs({"model": str(path)})
    for name, stored in GgufLoader(find(str(path), config), config).tensors():
        assert name
        assert stored.numel() >= 0


def mutate(content: bytes, head: int, numbers: random.Random) -> bytes:
    """Return the file with a part of its header changed, moved or removed."""
    changed = bytearray(content)
    at = numbers.randrange(head)
    match numbers.randrange(6):
        case 0:
            return bytes(changed[: numbers.randrange(len(changed))])
        case 1:
            changed[at : at + 8] = struct.pack(
                "<Q", numbers.choice((2**60, 2**63, 2**64 - 1, 2**32, 0, 1))
            )
        case 2:
            changed[at : at + 4] = struct.pack(
                "<I", numbers.choice((0, 1, 8, 9, 30, 99, 2**31, 2**32 - 1))
            )
        case 3:
            del changed[at : at + numbers.randrange(1, 40)]
        case 4:
            changed[at:at] = changed[: numbers.randrange(1, 40)]
        case _:
            changed[at] = numbers.randrange(256)
    return bytes(changed)


def fuzz(made: Made, tmp_path: Path, seeds: range) -> int:
    """Read mutations of a small file; return the number of rejected ones."""
    source, _ = made(
        "LlamaForCausalLM",
        "Q8_0",
        num_hidden_layers=1,
        hidden_size=64,
        intermediate_size=96,
        head_dim=16,
    )
    content = source.read_bytes()
    refused = 0
    path = tmp_path / "mutated.gguf"
    head = min(tensor.start for tensor in read_header(source).tensors)
    for seed in seeds:
        path.write_bytes(mutate(content, head, random.Random(seed)))
        message = ""
        tracemalloc.start()
        try:
            read_all(path)
        except ModelError as error:
            message = str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert len(message) < 4000, seed
        assert peak < MAX_MEMORY, seed
        refused += bool(message)
    return refused


def test_mutated_files_are_read_or_rejected(made: Made, tmp_path: Path) -> None:
    assert fuzz(made, tmp_path, range(100)) > 20


@pytest.mark.slow
def test_thousands_of_mutated_files_are_read_or_rejected(made: Made, tmp_path: Path) -> None:
    assert fuzz(made, tmp_path, range(100, 100 + MUTATIONS)) > MUTATIONS // 5
