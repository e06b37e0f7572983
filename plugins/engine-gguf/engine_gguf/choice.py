"""Which file is meant by what users give: a file, a folder of files, or a folder or hub id with a
type behind a colon.

./model.Q4_K_M.gguf     ./folder     ./folder:Q4_K_M     owner/name-GGUF:Q4_K_M
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from builtin_plugins.model_sources.api import download, is_hub_id
from core.api import EngineConfig, ModelError

_TYPED: Final = re.compile(r"(.+):((?:UD-)?(?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)\w*)", re.IGNORECASE)
_LATER: Final = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
"""Splits but the first."""


def chosen_file(model: str, config: EngineConfig) -> Path | None:
    """Return the file, None for what is none of these; hub ids are fetched.

    Raises `ModelError` where none is, or several are.
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
    """Return the one file of a folder that is a model, of this type if one is asked for."""
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
        f"{model} has {len(fitting)} {what} where one is wanted; there are: {found}. Give the file "
        "itself, or its type "
        "behind a colon."
    )
