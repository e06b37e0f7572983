"""Finds a model's tokenizer files and picks who reads them: the tokenizers library, or transformers without it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings, read_settings
from core.api import EngineConfig, ModelError, ModelSource

if TYPE_CHECKING:
    from core.api import Tokenizer

log = logging.getLogger(__name__)

_MARKS = ("*token*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "*.spm")
"""Files that say that there is a tokenizer; code of a checkpoint's own goes by such names, too."""
_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")


def load_tokenizer(source: ModelSource, config: EngineConfig) -> Tokenizer | None:
    """Return the tokenizer of `--tokenizer`, or of the model; None for a model that has not one file of it.

    Raises `ModelError` naming folder and way out.
    """
    folder = _folder(source, config)
    if config.model.tokenizer is None and not any(found for pattern in _MARKS for found in folder.glob(pattern)):
        log.warning("%s has no tokenizer: it takes and gives token ids only (--tokenizer names another)", folder)
        return None
    settings = read_settings(folder)
    if (folder / "tokenizer.json").is_file():
        return FastTokenizer(folder / "tokenizer.json", settings)
    return _by_transformers(folder, settings, config.model.trust_remote_code)


def _folder(source: ModelSource, config: EngineConfig) -> Path:
    wanted = config.model.tokenizer or source.path
    if wanted is None:
        raise ModelError(f"{source.name!r} comes without a tokenizer; give --tokenizer, or --skip-tokenizer-init.")
    folder = Path(wanted).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # lazy: slow to import

    try:
        return Path(
            snapshot_download(
                wanted,
                token=config.model.hf_token,
                cache_dir=config.load.download_dir,
                allow_patterns=list(_FILES),
            )
        )
    except Exception as error:
        raise ModelError(
            f"--tokenizer {wanted} is neither a local folder nor to be had from the hub: {error}"
        ) from error


def _by_transformers(folder: Path, settings: TokenizerSettings, trust_remote_code: bool) -> Tokenizer:
    from builtin_plugins.tokenizers.hf.slow import TransformersTokenizer  # lazy: transformers is slow to import

    return TransformersTokenizer(folder, settings, trust_remote_code)
