"""Downloads a repository's files from the Hugging Face hub into its cache.

Tokens, mirrors (HF_ENDPOINT), caches (HF_HOME) and offline mode (HF_HUB_OFFLINE) are those of
huggingface_hub.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from core.api import EngineConfig, ModelError

_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
SETTINGS: Final = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")
"""Patterns of files other than weights. Code is never downloaded."""
WEIGHTS: Final = ("*.safetensors", "*/model.safetensors")


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a repository id: `name` or `owner/name`."""
    return (
        len(name) <= 96
        and _ID.fullmatch(name) is not None
        and ".." not in name
        and "--" not in name
    )


def download(name: str, config: EngineConfig, patterns: Sequence[str]) -> Path:
    """Return the local folder of a repository, downloading missing files.

    Raises `ModelError` with the reason and the remedy.
    """
    from huggingface_hub import snapshot_download  # lazy: slow to import
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    revision = config.model.revision
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=config.load.download_dir,
            token=config.model.hf_token,
            allow_patterns=list(patterns),
            ignore_patterns=config.load.ignore_patterns,
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{name} on the hub is gated: accept its terms on its page, then give a token "
            "(HF_TOKEN or --hf-token)."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name} is neither a local folder nor a repository this token can see on the hub. "
            "Check the spelling; "
            "a private one needs a token (HF_TOKEN or --hf-token)."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(
            f"{name} on the hub has no revision {revision!r}; check --revision."
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelError(
            f"{name} is not a local folder and not in the hub cache, and the hub is unreachable "
            "(or HF_HUB_OFFLINE is set). Use a local folder, set HF_ENDPOINT to a mirror, or "
            "download the model on another machine and copy the hub cache."
        ) from error
    except Exception as error:
        raise ModelError(
            f"{name} cannot be downloaded from the hub: {error}. Try again, or use a local folder."
        ) from error
    return Path(folder)
