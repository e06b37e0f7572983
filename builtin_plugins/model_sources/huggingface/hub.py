"""Downloads a repository's files from the Hugging Face hub into its cache.

Tokens, mirrors (HF_ENDPOINT), caches (HF_HOME) and offline mode (HF_HUB_OFFLINE) are those of
huggingface_hub.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from builtin_plugins.model_sources.huggingface.progress import hidden_progress, progress_class
from builtin_plugins.weight_loaders.api import open_regular
from core.api import EngineConfig, ModelError

_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_COMMIT: Final = re.compile(rb"\w[\w.-]*")
_COMMIT_BYTES: Final = 64
SETTINGS: Final = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")
"""Patterns of files other than weights. Code is never downloaded."""
WEIGHTS: Final = ("*.safetensors", "*/model.safetensors")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository on the hub."""

    name: str
    num_bytes: int
    is_cached: bool
    """True: the hub cache has it already."""


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a repository id: `name` or `owner/name`."""
    return (
        len(name) <= 96
        and _ID.fullmatch(name) is not None
        and ".." not in name
        and "--" not in name
    )


def check_cache(name: str, revision: str | None, cache_dir: str | None) -> None:
    """Check what the hub cache holds of a repository, which another user may have written.

    Raises `ModelError` for a branch that leads out of the cache, and for a FIFO or a device, which
    the hub's client would wait for.
    """
    from huggingface_hub import constants  # lazy: slow to import

    cache = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    folder = cache / f"models--{name.replace('/', '--')}"
    branch = folder / "refs" / (revision or constants.DEFAULT_REVISION)
    advice = f"Remove {folder}; it is downloaded again."
    try:
        with open_regular(branch) as file:
            commit = file.read(_COMMIT_BYTES + 1)
    except FileNotFoundError:
        commit = b"0"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{branch} cannot be read: {reason}. {advice}") from error
    if len(commit) > _COMMIT_BYTES or not _COMMIT.fullmatch(commit.strip()):
        raise ModelError(f"{branch}: got {commit!r:.100}; expected a commit. {advice}")
    for part in folder.glob("blobs/*.incomplete"):
        if not part.is_file():
            raise ModelError(f"{part}: expected a regular file. {advice}")


def download(name: str, config: EngineConfig, patterns: Sequence[str]) -> Path:
    """Return the local folder of a repository, downloading missing files.

    Raises `ModelError` with the reason and the remedy.
    """
    return Path(_snapshot(name, config, patterns, tqdm_class=progress_class(name)))


def list_downloads(name: str, config: EngineConfig, patterns: Sequence[str]) -> list[HubFile]:
    """Return the files of a repository that `download` would return, without their content.

    Raises like `download`.
    """
    found = _snapshot(name, config, patterns, dry_run=True, tqdm_class=hidden_progress())
    return [HubFile(each.filename, each.file_size or 0, each.is_cached) for each in found]


def _snapshot(name: str, config: EngineConfig, patterns: Sequence[str], **options: Any) -> Any:
    """Call the hub's client. Raises `ModelError` with the reason and the remedy."""
    from huggingface_hub import snapshot_download  # lazy: slow to import
    from huggingface_hub.errors import DryRunError

    revision = config.model.revision
    check_cache(name, revision, config.load.download_dir)
    try:
        return snapshot_download(
            name,
            revision=revision,
            cache_dir=config.load.download_dir,
            token=config.model.hf_token,
            allow_patterns=list(patterns),
            ignore_patterns=config.load.ignore_patterns,
            **options,
        )
    except DryRunError as error:
        raise ModelError(_reason(name, revision, error.__cause__ or error)) from error
    except Exception as error:
        raise ModelError(_reason(name, revision, error)) from error


def _reason(name: str, revision: str | None, error: BaseException) -> str:
    """Return why a repository cannot be downloaded, and the remedy."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return (
            f"{name} on the hub is gated: accept its terms on its page, then give a token "
            "(HF_TOKEN or --hf-token)."
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{name} is neither a local folder nor a repository this token can see on the hub. "
            "Check the spelling; "
            "a private one needs a token (HF_TOKEN or --hf-token)."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name} on the hub has no revision {revision!r}; check --revision."
    if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        return (
            f"{name} is not a local folder and not in the hub cache, and the hub is unreachable "
            "(or HF_HUB_OFFLINE is set). Use a local folder, set HF_ENDPOINT to a mirror, or "
            "download the model on another machine and copy the hub cache."
        )
    return f"{name} cannot be downloaded from the hub: {error}. Try again, or use a local folder."
