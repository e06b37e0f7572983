"""Engines with a tiny random model: unconstrained outputs are noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.testing.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("grammar") / "llama")


@pytest.fixture(scope="session")
def open_llm(checkpoint: Path) -> Iterator[Callable[..., LLM]]:
    opened: list[LLM] = []

    def make(model: str = str(checkpoint), **options: Any) -> LLM:
        defaults = {
            "max_model_len": 480,
            "kv_cache_memory_bytes": 1 << 25,
            "log_level": "error",
            "max_num_seqs": 32,
            "num_threads": 1,
        }
        opened.append(LLM(model, **{**defaults, **options}))
        return opened[-1]

    yield make
    for llm in opened:
        llm.shutdown()


@pytest.fixture(scope="session")
def llm(open_llm: Callable[..., LLM]) -> LLM:
    return open_llm()
