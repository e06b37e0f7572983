"""Finds the files of a model: one file or its splits.

./model.Q4_K_M.gguf     ./folder     ./folder:Q4_K_M     owner/name-GGUF:Q4_K_M
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from builtin_plugins.model_sources.api import download, is_hub_id
from core.api import EngineConfig, ModelError
from engine_gguf.header import Header, file_error, printable, read_header

_SPLIT: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MAX_SPLITS: Final = 10_000


def model_files(path: Path) -> list[Path]:
    """Return the file, or all splits of its model in order.

    Raises `ModelError` naming missing ones.
    """
    if not path.is_file():
        raise ModelError(f"{path}: file not found. Check the spelling, or download it.")
    found = _SPLIT.fullmatch(path.name)
    if found is None:
        return [path]
    stem, _, count = found.groups()
    if not 1 <= int(count) <= _MAX_SPLITS:
        raise file_error(path, f"states {count} splits")
    files = [
        path.with_name(f"{stem}-{index:05}-of-{count}.gguf") for index in range(1, int(count) + 1)
    ]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"{path} is one of {len(files)} splits; {len(missing)} are missing: "
            f"{', '.join(missing[:6])}. Download them into the same folder."
        )
    return files


def read_headers(path: Path) -> list[Header]:
    """Return the headers of all files of a model; the settings are those of the first."""
    files = model_files(path)
    headers = [read_header(file) for file in files]
    for index, header in enumerate(headers):
        count = header.settings.get("split.count", 0)
        number = header.settings.get("split.no", 0)
        if count not in (0, 1) and (count, number) != (len(files), index):
            raise ModelError(
                f"{header.path} states split {number} of {count}, which contradicts its name. "
                "Restore the original file names."
            )
    names = Counter(tensor.name for header in headers for tensor in header.tensors)
    if len(names) < names.total():
        raise file_error(
            path,
            f"and its other splits have the tensor {printable(names.most_common(1)[0][0])} twice",
        )
    return headers


_TYPED: Final = re.compile(r"(.+):((?:UD-)?(?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)\w*)", re.IGNORECASE)
_LATER: Final = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
"""Splits other than the first."""


def find_file(model: str, config: EngineConfig) -> Path | None:
    """Return the file that `model` names, None for anything else; hub ids are fetched.

    Raises `ModelError` unless there is exactly one.
    """
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return path
    typed = _TYPED.fullmatch(model)
    if typed is None:
        alone = path.is_dir() and not (path / "config.json").exists() and any(path.glob("*.gguf"))
        return _only(path, model, None) if alone else None
    name = typed[1]
    kind = typed[2]
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _only(folder, model, kind)
    if not is_hub_id(name):
        return None
    return _only(
        download(name, config, [f"*{case}*.gguf" for case in {kind, kind.upper(), kind.lower()}]),
        model,
        kind,
    )


def _only(folder: Path, model: str, kind: str | None) -> Path:
    """Return the only model file of a folder, of type `kind` if given."""
    files = [file for file in sorted(folder.rglob("*.gguf")) if not _LATER.fullmatch(file.name)]
    files = [file for file in files if not file.name.lower().startswith("mmproj")]
    fitting = files
    if kind is not None:
        spelt = re.compile(rf"(^|[-_.]){re.escape(kind)}(?=[-.])", re.IGNORECASE)
        fitting = [file for file in files if spelt.search(file.name)]
    if len(fitting) == 1:
        return fitting[0]
    found = ", ".join(file.name for file in (fitting or files)[:12]) or "none"
    what = "GGUF files" if kind is None else f"GGUF files of type {kind}"
    raise ModelError(
        f"{model}: got {len(fitting)} {what}; expected one. Found: {found}. Name the file, or its "
        "type after a colon."
    )
