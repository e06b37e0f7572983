"""Randomly damaged headers: a file is read or rejected, nothing else."""

from __future__ import annotations

import copy
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from builtin_plugins.weight_loaders.safetensors.loader import SafetensorsLoader
from core.config import EngineConfig
from core.contracts.models import ModelSource
from core.errors import ModelError

NUM_FILES = 2000
JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    10**40,
    1.5,
    1e400,
    "x",
    "",
    [],
    [[]],
    [0, 2**62],
    {},
    {"a": 1},
    "F32",
    "I8",
]


def good_file() -> bytes:
    tensors = {f"layer.{index}.weight": torch.ones(2, index) for index in range(4)}
    return save({**tensors, "half": torch.ones(3, dtype=torch.bfloat16)})


def change_bytes(file: bytes, source: random.Random) -> bytes:
    """Flip, cut or repeat somewhere, mostly in the header."""
    data = bytearray(file)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(min(len(data), 500)) if data else 0
        match source.randrange(4):
            case 0:
                data[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                del data[at : at + source.randint(1, 9)]
            case 2:
                data[at:at] = data[at : at + source.randint(1, 9)]
            case _:
                data[source.randrange(8) :][:1] = b"\xff"
                del data[source.randrange(len(data) + 1) :]
    return bytes(data)


def change_facts(file: bytes, source: random.Random) -> bytes:
    """Put junk into the header's JSON."""
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    for _ in range(source.randint(1, 3)):
        name = source.choice(list(header))
        entry = header[name]
        junk = copy.deepcopy(source.choice(JUNK))
        if isinstance(entry, dict) and entry and source.random() < 0.9:
            field = source.choice(list(entry))
            if isinstance(entry[field], list) and entry[field] and source.random() < 0.7:
                entry[field][source.randrange(len(entry[field]))] = junk
            else:
                entry[field] = junk
        else:
            header[name] = junk
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + file[8 + length :]


def entry(start: int, end: int) -> str:
    return json.dumps({"dtype": "F32", "shape": [1], "data_offsets": [start, end]})


def fault_of(model: ModelSource) -> str:
    """Read every tensor; return the error, empty if there is none."""
    try:
        for _, tensor in SafetensorsLoader(model, EngineConfig()).tensors():
            tensor.sum()
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("header", "name"),
    [
        # The safetensors library takes the last one, and says nothing.
        (f'{{"a": {entry(0, 4)}, "b": {entry(4, 8)}, "a": {entry(0, 4)}}}', "a"),
        (f'{{"a": {entry(0, 4)}, "a": {entry(4, 8)}}}', "a"),
        ('{"a": {"dtype": "F32", "dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}', "dtype"),
        ('{"__metadata__": {}, "__metadata__": {"format": "pt"}}', "__metadata__"),
    ],
)
def test_duplicate_tensor_name_is_rejected(header: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    message = fault_of(ModelSource("m", "A", None, path=str(tmp_path)))
    assert (
        message
        == f"{path} has a header that cannot be read (it names {name!r} twice). Download the file "
        "again."
    )


def test_damaged_header_is_read_or_rejected(tmp_path: Path) -> None:
    source = random.Random(7)
    file = good_file()
    path = tmp_path / "model.safetensors"
    model = ModelSource("m", "A", None, path=str(tmp_path))
    refused = 0
    started = time.monotonic()
    for _ in range(NUM_FILES):
        path.write_bytes(source.choice((change_bytes, change_facts))(file, source))
        message = fault_of(model)
        if message:
            refused += 1
            assert str(path) in message
            assert len(message) < 1000 + len(str(path))
    assert refused > NUM_FILES // 2
    assert time.monotonic() - started < 60
