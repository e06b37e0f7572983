"""The files of a model: one, or its splits. Knows their names and what each says of its place."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from core.api import ModelError
from engine_gguf.header import Header, fault, read_header, shown

_SPLIT: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MOST: Final = 10_000


def model_files(path: Path) -> list[Path]:
    """Return the file, or all splits of the model that it is one of, in order.

    Raises `ModelError` naming what is missing.
    """
    if not path.is_file():
        raise ModelError(f"there is no file {path}. Check the spelling, or download it.")
    found = _SPLIT.fullmatch(path.name)
    if found is None:
        return [path]
    stem, _, count = found.groups()
    if not 1 <= int(count) <= _MOST:
        raise fault(path, f"says that it is one of {count} files")
    files = [
        path.with_name(f"{stem}-{index:05}-of-{count}.gguf") for index in range(1, int(count) + 1)
    ]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"{path} is one of {len(files)} files, and {len(missing)} of them are not beside it: "
            f"{', '.join(missing[:6])}. Download them into the same folder."
        )
    return files


def read_headers(path: Path) -> list[Header]:
    """Return the headers of all files of a model; the first one's settings are the model's."""
    files = model_files(path)
    headers = [read_header(file) for file in files]
    for index, header in enumerate(headers):
        count = header.settings.get("split.count", 0)
        number = header.settings.get("split.no", 0)
        if count not in (0, 1) and (count, number) != (len(files), index):
            raise ModelError(
                f"{header.path} says that it is number {number} of {count} files, and its name "
                "says otherwise. Give a "
                "model's files the names they had."
            )
    names = Counter(tensor.name for header in headers for tensor in header.tensors)
    if len(names) < names.total():
        raise fault(
            path,
            f"and the files beside it have the tensor {shown(names.most_common(1)[0][0])} twice",
        )
    return headers
