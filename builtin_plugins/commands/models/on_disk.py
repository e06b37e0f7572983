"""Finds the models in the hub cache and in folders of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from builtin_plugins.model_sources.api import read_settings_object
from core.api import ModelError

ADAPTER: Final = "adapter_config.json"
DEPTH: Final = 2
"""Levels of subfolders in which models are looked for: OWNER/NAME."""
MAX_FOLDERS: Final = 10_000
"""Maximum number of subfolders that are looked at."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model or adapter on the disk."""

    name: str
    """What `engine serve` takes: a hub id or a folder."""
    path: str
    num_bytes: int
    architecture: str
    """Architecture of config.json, "adapter of NAME", or empty."""
    is_complete: bool
    """False: weights are missing, or a download was interrupted."""


def hub_cache() -> Path:
    """Return the folder of the hub's cache (`HF_HOME`, `HF_HUB_CACHE`)."""
    from huggingface_hub import constants  # lazy: slow to import

    return Path(constants.HF_HUB_CACHE).expanduser()


def read_architecture(folder: Path) -> str:
    """Return the architecture of a folder, what an adapter belongs to, or an empty text."""
    try:
        if (folder / "config.json").is_file():
            stated = read_settings_object(folder / "config.json").get("architectures")
            first = stated[0] if isinstance(stated, list) and stated else ""
            return str(first)[:100]
        if (folder / ADAPTER).is_file():
            base = read_settings_object(folder / ADAPTER).get("base_model_name_or_path")
            return f"adapter of {str(base)[:100]}"
    except ModelError:
        return "unreadable config"
    return ""


def models_in_cache(cache: Path) -> Iterator[StoredModel]:
    """Yield the models of a hub cache by name; nothing for a folder that does not exist."""
    from huggingface_hub import scan_cache_dir  # lazy: slow to import

    if not cache.is_dir():
        return
    repositories = [repo for repo in scan_cache_dir(cache).repos if repo.repo_type == "model"]
    for repo in sorted(repositories, key=lambda repo: repo.repo_id):
        revision: Any = max(repo.revisions, key=lambda each: each.last_modified, default=None)
        folder = revision.snapshot_path if revision is not None else repo.repo_path
        interrupted = any((repo.repo_path / "blobs").glob("*.incomplete"))
        yield StoredModel(
            repo.repo_id,
            str(folder),
            repo.size_on_disk,
            read_architecture(folder),
            has_weights(folder) and not interrupted,
        )


def models_in_folders(folders: Iterable[Path]) -> Iterator[StoredModel]:
    """Yield the models in folders and their subfolders."""
    for top in folders:
        for folder in _folders(top):
            if (folder / "config.json").is_file() or (folder / ADAPTER).is_file():
                sizes = [file.stat().st_size for file in folder.iterdir() if file.is_file()]
                architecture = read_architecture(folder)
                yield StoredModel(
                    str(folder), str(folder), sum(sizes), architecture, has_weights(folder)
                )


def has_weights(folder: Path) -> bool:
    """Return whether a folder has safetensors, in itself or in a subfolder."""
    return any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*/*.safetensors"))


def _folders(top: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders, by name."""
    level = [top]
    seen = 0
    for _ in range(DEPTH + 1):
        yield from level
        seen += len(level)
        below = (each for folder in level for each in _subfolders(folder))
        level = list(islice(below, max(0, MAX_FOLDERS - seen)))


def _subfolders(folder: Path) -> list[Path]:
    """Return the visible subfolders by name; none of a folder that cannot be read."""
    try:
        return sorted(
            each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")
        )
    except OSError:
        return []
