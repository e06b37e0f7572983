"""Loads a model's tokenizer, by the tokenizers library or, without tokenizer.json, by
transformers.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builtin_plugins.model_sources.api import check_cache
from builtin_plugins.tokenizers.hf.fast import FastTokenizer
from builtin_plugins.tokenizers.hf.settings import TokenizerSettings, read_settings
from builtin_plugins.tokenizers.hf.tekken import ROLES, TEKKEN
from core.api import EngineConfig, ModelError
from core.api.models import ModelSource
from core.model_spec.facts import stated_vocabulary

if TYPE_CHECKING:
    from core.api.serving import Tokenizer

log = logging.getLogger(__name__)

_MARKS = ("*token*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "*.spm", TEKKEN)
"""Patterns of files that indicate a tokenizer."""
_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*")


def load_tokenizer(source: ModelSource, config: EngineConfig) -> Tokenizer | None:
    """Return the tokenizer of `--tokenizer` or of the model; None if the model has no tokenizer
    file.

    Raises `ModelError` with the folder and the remedy.
    """
    folder = _folder(source, config)
    if config.model.tokenizer is None and not any(
        found for pattern in _MARKS for found in folder.glob(pattern)
    ):
        log.warning(
            "%s has no tokenizer: only token ids are served (set --tokenizer to use another)",
            folder,
        )
        return None
    settings = read_settings(folder, config.model.chat_template)
    path = folder / "tokenizer.json"
    if not os.path.lexists(path) and (folder / TEKKEN).is_file():
        path = folder / TEKKEN
        settings = replace(settings, special_tokens={**ROLES, **settings.special_tokens})
    if os.path.lexists(path):  # anything but a file is an error, no other kind of tokenizer
        tokenizer = FastTokenizer(path, settings, is_trusted=config.model.trust_remote_code)
        _check_size(tokenizer, path, source)
        return tokenizer
    return _by_transformers(folder, settings, config.model.trust_remote_code)


def _check_size(tokenizer: FastTokenizer, path: Path, source: ModelSource) -> None:
    """Raise `ModelError` for a tokenizer with more text tokens than the model's embedding.

    Added tokens may exceed the embedding, such as image tokens of models served for text only;
    requests with such a token are rejected.
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
    name = config.model.tokenizer or source.path
    if name is None:
        raise ModelError(
            f"{source.name!r} comes without a tokenizer; give --tokenizer, or "
            "--skip-tokenizer-init."
        )
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # lazy: slow to import

    # The model's own repository uses the model's revision.
    revision = config.model.revision if name == config.model.model else None
    check_cache(name, revision, config.load.download_dir)
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                token=config.model.hf_token,
                cache_dir=config.load.download_dir,
                allow_patterns=list(_FILES),
            )
        )
    except Exception as error:
        raise ModelError(
            f"--tokenizer {name} is neither a local folder nor to be had from the hub: {error}"
        ) from error


def _by_transformers(
    folder: Path, settings: TokenizerSettings, trust_remote_code: bool
) -> Tokenizer:
    from builtin_plugins.tokenizers.hf.slow import (
        TransformersTokenizer,
    )  # lazy: transformers is slow to import

    return TransformersTokenizer(folder, settings, trust_remote_code)
