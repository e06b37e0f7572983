"""What the tests of the demo model share: its folder, its tokenizer, one engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from core import LLM
from examples.demo_model.chat import Chat
from examples.demo_model.tokenizer import train_tokenizer

MODEL = Path(__file__).parents[2] / "builtin_plugins" / "demo" / "model"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Training has threads of its own, each for batches of its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return MODEL


@pytest.fixture(scope="session")
def demo_llm() -> Iterator[LLM]:
    """The shipped model in float32: what holds there by a nat holds on every machine."""
    with LLM(str(MODEL), dtype="float32", max_num_seqs=64, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    return train_tokenizer(vocab_size=512, seed=0, steps=2, step_items=50)


@pytest.fixture(scope="session")
def small_chat(small_tokenizer: Tokenizer) -> Chat:
    return Chat(small_tokenizer)
