"""Finds a model's tokenizer files and picks who reads them: the tokenizers library, or transformers
without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings, read_settings
from core.api import EngineConfig, ModelError, ModelSource
from core.model_spec.vocabulary import stated_vocabulary

if TYPE_CHECKING:
    from core.api import Tokenizer

log = logging.getLogger(__name__)

_MARKS = ("*token*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "*.spm")
"""Files that say that there is a tokenizer; code of a checkpoint's own goes by such names, too."""
_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")


def load_tokenizer(source: ModelSource, config: EngineConfig) -> Tokenizer | None:
    """Return the tokenizer of `--tokenizer`, or of the model; None for a model that has not one
    file of it.

    Raises `ModelError` naming folder and way out.
    """
    folder = _folder(source, config)
    if config.model.tokenizer is None and not any(
        found for pattern in _MARKS for found in folder.glob(pattern)
    ):
        log.warning(
            "%s has no tokenizer: it takes and gives token ids only (--tokenizer names another)",
            folder,
        )
        return None
    settings = read_settings(folder)
    if (folder / "tokenizer.json").is_file():
        tokenizer = FastTokenizer(folder / "tokenizer.json", settings)
        _check_size(tokenizer, folder / "tokenizer.json", source)
        return tokenizer
    return _by_transformers(folder, settings, config.model.trust_remote_code)


def _check_size(tokenizer: FastTokenizer, path: Path, source: ModelSource) -> None:
    """Raise `ModelError` for a tokenizer that makes of plain text what the model has no embedding
    for.

    Tokens added to it may lie beyond the embedding, as an image's do in models that are served for
    text alone: requests that have one are refused.
    """
    size = stated_vocabulary(_fields(source.hf_config))
    if size is None or tokenizer.vocab_size <= size:
        return
    if tokenizer.text_size > size:
        raise ModelError(
            f"{path} has {tokenizer.text_size} tokens, and the model an embedding for {size} "
            "(vocab_size in config.json). "
            "They do not belong together; give the model's own with --tokenizer."
        )
    log.warning(
        "%s has %d tokens, the model %d: the last ones cannot be used",
        path,
        tokenizer.vocab_size,
        size,
    )


def _fields(config: Any) -> Mapping[str, Any]:
    return config if isinstance(config, Mapping) else getattr(config, "__dict__", {})


def _folder(source: ModelSource, config: EngineConfig) -> Path:
    wanted = config.model.tokenizer or source.path
    if wanted is None:
        raise ModelError(
            f"{source.name!r} comes without a tokenizer; give --tokenizer, or "
            "--skip-tokenizer-init."
        )
    folder = Path(wanted).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # lazy: slow to import

    try:
        return Path(
            snapshot_download(
                wanted,
                # The model's own repository by its name is still the model's, and pinned with it.
                revision=config.model.revision if wanted == config.model.model else None,
                token=config.model.hf_token,
                cache_dir=config.load.download_dir,
                allow_patterns=list(_FILES),
            )
        )
    except Exception as error:
        raise ModelError(
            f"--tokenizer {wanted} is neither a local folder nor to be had from the hub: {error}"
        ) from error


def _by_transformers(
    folder: Path, settings: TokenizerSettings, trust_remote_code: bool
) -> Tokenizer:
    from builtin_plugins.tokenizers.hf.slow import (
        TransformersTokenizer,
    )  # lazy: transformers is slow to import

    return TransformersTokenizer(folder, settings, trust_remote_code)
