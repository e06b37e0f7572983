"""safetensors files and their index: headers, offsets, shapes, names and kinds of files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import (
    HostileFile,
    Write,
    binary,
    read_safetensors,
    safetensors,
    text,
)

FILE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
KIND: Final = "safetensors"
NORM: Final = "model.norm.weight"
Header = dict[str, Any]


def header(change: Callable[[Header], Any]) -> Write:
    """Return a writer that changes the header of the good file."""

    def write(folder: Path) -> None:
        stated, data = read_safetensors(folder / FILE)
        change(stated)
        (folder / FILE).write_bytes(safetensors(stated, data))

    return write


def norm(**facts: Any) -> Write:
    """Return a writer that changes the entry of one tensor."""
    return header(lambda stated: stated[NORM].update(facts))


def content(change: Callable[[bytes], bytes]) -> Write:
    """Return a writer that changes the bytes of the good file."""

    def write(folder: Path) -> None:
        (folder / FILE).write_bytes(change((folder / FILE).read_bytes()))

    return write


def duplicate(folder: Path) -> None:
    """Name a tensor twice."""
    stated, data = read_safetensors(folder / FILE)
    encoded = json.dumps(stated).encode()
    twice = json.dumps({NORM: stated[NORM]}).encode()[:-1] + b", " + encoded[1:]
    (folder / FILE).write_bytes(safetensors(twice, data))


def index(name: str) -> Write:
    """Return a writer of an index in which one tensor is in another file."""

    def write(folder: Path) -> None:
        stated, _ = read_safetensors(folder / FILE)
        located = {tensor: FILE for tensor in stated if tensor != "__metadata__"}
        (folder / INDEX).write_text(json.dumps({"weight_map": {**located, NORM: name}}))

    return write


def linked(target: str) -> Write:
    """Return a writer that replaces the file by a link."""

    def write(folder: Path) -> None:
        (folder / FILE).unlink()
        (folder / FILE).symlink_to(target)

    return write


def fifo(folder: Path) -> None:
    """Put a FIFO in place of the file."""
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


def indexed_fifo(folder: Path) -> None:
    """Name a FIFO in the index."""
    os.mkfifo(folder / "other.safetensors")
    index("other.safetensors")(folder)


def directory(folder: Path) -> None:
    """Put a directory in place of the file."""
    (folder / FILE).unlink()
    (folder / FILE).mkdir()


def sparse(folder: Path) -> None:
    """Make the file 1 TiB without taking space."""
    with (folder / FILE).open("r+b") as file:
        file.truncate(1 << 40)


def swap_dtypes(stated: Header) -> None:
    """State each tensor as integers of the same size."""
    for name, facts in stated.items():
        if name != "__metadata__":
            facts["dtype"] = "I32"


def rename(stated: Header) -> None:
    """Give a tensor a name of a megabyte."""
    stated["n" * (1 << 20)] = stated.pop(NORM)


def scatter(stated: Header) -> None:
    """Add 200,000 empty tensors."""
    for number in range(200_000):
        stated[f"t{number}"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


WRITERS: Final[dict[str, tuple[Write, str | None]]] = {
    "empty": (binary(FILE, b""), "no safetensors file"),
    "seven bytes": (binary(FILE, b"\0" * 7), "no safetensors file"),
    "header of 2^63 bytes": (content(lambda old: b"\0" * 7 + b"\x80" + old[8:]), "header"),
    "header of 2^64-1 bytes": (content(lambda old: b"\xff" * 8 + old[8:]), "header"),
    "header of 99 MB in a small file": (
        content(lambda old: (99_000_000).to_bytes(8, "little") + old[8:]),
        "cut off inside its header",
    ),
    "header of 0 bytes": (content(lambda old: bytes(8) + old[8:]), "header"),
    "header of binary garbage": (binary(FILE, safetensors(os.urandom(64))), "header"),
    "header nested 100,000 deep": (binary(FILE, safetensors(b"[" * 100_000)), "header"),
    "header nested in objects": (
        binary(FILE, safetensors(b'{"a":' * 50_000 + b"1" + b"}" * 50_000)),
        "header",
    ),
    "header of a text": (binary(FILE, safetensors("x")), "header"),
    "header of a number of 5,000 digits": (
        binary(FILE, safetensors(b'{"a": ' + b"9" * 5000 + b"}")),
        "header",
    ),
    "header of NaN": (binary(FILE, safetensors(b'{"a": NaN}')), "describes tensor"),
    "header with a NUL in a name": (
        header(lambda stated: stated.update({"a\0b": dict(stated[NORM])})),
        "same bytes",
    ),
    "metadata of a list": (header(lambda stated: stated.update(__metadata__=[1])), None),
    "metadata of 8 MiB": (
        header(lambda stated: stated.update(__metadata__={"x": "y" * (8 << 20)})),
        None,
    ),
    "entry null": (header(lambda stated: stated.update({NORM: None})), NORM),
    "entry without offsets": (header(lambda stated: stated[NORM].pop("data_offsets")), NORM),
    "shape of 2^63": (norm(shape=[2**63]), NORM),
    "shape that overflows 64 bits": (norm(shape=[2**32, 2**32, 2**32]), NORM),
    "shape that overflows with a zero": (norm(shape=[0, 2**62, 2**62]), NORM),
    "shape of a negative size": (norm(shape=[-32]), NORM),
    "shape of floats": (norm(shape=[32.0]), NORM),
    "shape of a text": (norm(shape="32"), NORM),
    "shape of true": (norm(shape=[True]), NORM),
    "shape of a million dimensions": (norm(shape=[1] * 10**6), NORM),
    "shape null": (norm(shape=None), NORM),
    "offsets swapped": (
        header(lambda stated: stated[NORM].update(data_offsets=stated[NORM]["data_offsets"][::-1])),
        NORM,
    ),
    "offsets of 2^63": (norm(data_offsets=[2**63, 2**63 + 128]), NORM),
    "offsets that wrap": (norm(data_offsets=[2**64 - 128, 2**64]), NORM),
    "offsets beyond the file": (norm(data_offsets=[2**40, 2**40 + 128]), "cut off"),
    "offsets of three": (norm(data_offsets=[0, 1, 2]), NORM),
    "offsets of texts": (norm(data_offsets=["0", "128"]), NORM),
    "offsets of one byte more": (norm(data_offsets=[0, 129]), NORM),
    "offsets overlapping": (
        header(
            lambda stated: stated.update(
                {NORM: dict(stated["model.layers.0.input_layernorm.weight"])}
            )
        ),
        "the same bytes",
    ),
    "dtype unknown": (norm(dtype="F7"), "F7"),
    "dtype of half the size": (norm(dtype="F16"), "its shape"),
    "dtype of integers": (header(swap_dtypes), "int32"),
    "dtype null": (norm(dtype=None), NORM),
    "dtype of a megabyte": (norm(dtype="F" * (1 << 20)), NORM),
    "duplicate names": (duplicate, "twice"),
    "a name of a megabyte": (header(rename), "missing|unexpected"),
    "200,000 empty tensors": (header(scatter), "unexpected"),
    "truncated by one byte": (content(lambda old: old[:-1]), "cut off"),
    "truncated in half": (content(lambda old: old[: len(old) // 2]), "cut off"),
    "1 TiB of nothing at the end": (sparse, None),
    "FIFO": (fifo, "no \\*.safetensors file"),
    "directory": (directory, "no \\*.safetensors file"),
    "link to an endless device": (linked("/dev/zero"), "no \\*.safetensors file"),
    "link to itself": (linked(FILE), "no \\*.safetensors file"),
    "link to a text": (linked("/etc/hostname"), "safetensors file|cut off"),
    "index of a FIFO": (indexed_fifo, "missing"),
    "index to the parent folder": (index("../model.safetensors"), "outside its folder"),
    "index to an absolute path": (index("/etc/passwd"), "outside its folder"),
    "index to itself": (index(INDEX), "safetensors"),
    "index to the folder": (index("."), "missing|outside"),
    "index to a NUL": (index("a\0b"), "index|missing|outside"),
    "index to a name of a megabyte": (index("n" * (1 << 20)), "index|missing|outside"),
    "index to a name of 300 characters": (index("n" * 300), "index|missing|outside"),
    "index of numbers": (text(INDEX, '{"weight_map": {"a": 1e999}}'), "index"),
    "index of a list": (text(INDEX, '{"weight_map": []}'), "index"),
    "index of nothing": (text(INDEX, '{"weight_map": {}}'), "index|no weight|missing"),
    "index nested 100,000 deep": (text(INDEX, "[" * 100_000), "index"),
    "index nested 900 deep": (
        text(INDEX, '{"weight_map": ' + "[" * 900 + "]" * 900 + "}"),
        "index",
    ),
    "index of 10,000 files": (
        text(
            INDEX, json.dumps({"weight_map": {f"t{n}": f"{n}.safetensors" for n in range(10**4)}})
        ),
        "10000 of 10000",
    ),
}
CORPUS: Final = [
    HostileFile(KIND, name, write, refusal) for name, (write, refusal) in WRITERS.items()
]
