"""Outputs of a model in a file, for others of it to be guessed from: token ids one behind the
other. Knows no text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from safetensors.torch import load_file, save_file

from core.api import ConfigError

if TYPE_CHECKING:
    from core.api import ModelSource

FILE: Final = "outputs.safetensors"
END: Final = -1
"""Stands behind each output, and is no token."""


def write_outputs(folder: Path, outputs: Iterable[Sequence[int]]) -> None:
    """Write outputs, of two bytes a token where their numbers allow."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = torch.tensor(
        [token for output in outputs for token in (*output, END)], dtype=torch.int32
    )
    if int(tokens.max()) <= torch.iinfo(torch.int16).max:
        tokens = tokens.to(torch.int16)
    save_file({"tokens": tokens}, folder / FILE, metadata={"format": "pt"})


def read_outputs(source: ModelSource, vocab_size: int) -> array[int]:
    """Return all tokens, `END` behind each output.

    Raises `ConfigError` for what is no such file, or of other tokens.
    """
    path = Path(source.path or source.name) / FILE
    if not path.is_file():
        raise ConfigError(
            f"--speculative-config.model {source.name!r} holds no {FILE}, the outputs that the "
            "method suffix begins with."
        )
    tokens = load_file(path).get("tokens")
    if (
        tokens is None
        or tokens.ndim != 1
        or tokens.dtype not in (torch.int16, torch.int32, torch.int64)
    ):
        raise ConfigError(f"{path} holds no row of whole numbers called 'tokens'.")
    if len(tokens) and not (int(tokens.min()) >= END and int(tokens.max()) < vocab_size):
        raise ConfigError(
            f"{path} has tokens from {int(tokens.min())} to {int(tokens.max())}; the model has "
            f"{vocab_size}: it is of another."
        )
    return array("i", tokens.tolist())
