"""Tiny models with rotary factors that depend on the length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.rope_by_length.texts import LENGTHS, TYPES, Expected, expect


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Expected]]]:
    """Return a function from architecture to its checkpoint and transformers' results."""
    known: dict[str, tuple[Path, list[Expected]]] = {}

    def look_up(architecture: str) -> tuple[Path, list[Expected]]:
        if architecture not in known:
            folder = tmp_path_factory.mktemp("model")
            make_checkpoint(architecture, folder, seed=1, **TYPES[architecture])
            kind = getattr(transformers, architecture)
            model = kind.from_pretrained(folder, attn_implementation="eager").eval()
            known[architecture] = folder, [expect(model, length) for length in LENGTHS]
        return known[architecture]

    return look_up
