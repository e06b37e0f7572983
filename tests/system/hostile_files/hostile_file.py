"""What a file of the corpus is, and the edits that its writers share."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Write = Callable[[Path], None]
"""Makes the files of a good folder hostile."""


@dataclass(frozen=True, slots=True)
class HostileFile:
    """A hostile file, and the outcome that it must have."""

    kind: str
    """Name of the file's format in the table of the page."""
    name: str
    write: Write
    refusal: str | None
    """Regular expression in the refusal; None: the model is served."""
    way: str = "offline"
    """Function of `loading.py` that loads it."""
    part: str = ""
    """Folder of the good folder that `write` gets."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the engine, in addition to those of the way."""

    @property
    def id(self) -> str:
        """Name of its test."""
        return f"{self.kind}: {self.name}"


def edit_json(folder: Path, file: str, **fields: Any) -> None:
    """Change fields of a JSON file; a missing file counts as empty."""
    path = folder / file
    stated = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**stated, **fields}))


def fields(file: str, **changed: Any) -> Write:
    """Return a writer that changes fields of a JSON file."""
    return lambda folder: edit_json(folder, file, **changed)


def text(file: str, content: str) -> Write:
    """Return a writer of a whole text file."""
    return lambda folder: _replace(folder / file, content.encode())


def binary(file: str, content: bytes) -> Write:
    """Return a writer of a whole binary file."""
    return lambda folder: _replace(folder / file, content)


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file; `length` is the size of the header that it claims."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def read_safetensors(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return header and data of a good file."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]
