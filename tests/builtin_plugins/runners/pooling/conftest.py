"""Tiny checkpoints of pooled models and a way to open engines for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, processors

from core import LLM
from core.testing.checkpoints import VOCAB, make_checkpoint

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function from architecture to its tiny checkpoint, made once; texts begin and end
    like BERT's.
    """
    root = tmp_path_factory.mktemp("pooled")

    def folder_of(architecture: str, **changes: Any) -> Path:
        folder = root / "-".join(
            [architecture, *(f"{name}{value}" for name, value in changes.items())]
        )
        if not folder.exists():
            make_checkpoint(architecture, folder, seed=1, **changes)
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            first = "<|im_start|>"
            last = "<|im_end|>"
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{first} $A {last}",
                pair=f"{first} $A {last} $B:1 {last}:1",
                special_tokens=[(first, VOCAB - 2), (last, VOCAB - 1)],
            )
            tokenizer.save(str(folder / "tokenizer.json"))
        return folder

    return folder_of


def open_engine(folder: Path, **settings: Any) -> LLM:
    """Return an engine of a checkpoint, small and quiet."""
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 128,
        "num_threads": 1,
        "log_level": "error",
    }
    return LLM(str(folder), **(defaults | {"kv_cache_memory_bytes": 1 << 22} | settings))


@pytest.fixture(scope="session")
def engine() -> Callable[..., LLM]:
    """Return the function that opens engines."""
    return open_engine


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Token ids of several lengths; the first two begin alike."""
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.randint(5, VOCAB - 3, (length,), generator=generator).tolist()
        for length in (70, 40, 3, 55)
    ]
    return [drawn[0], drawn[0][:40] + drawn[1][:20], *drawn[2:]]
