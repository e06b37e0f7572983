"""Fixtures of the demo model's tests: a tokenizer, and a restored thread count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer

from examples.demo_model.chat import Chat
from examples.demo_model.tokenizer import train_tokenizer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: training runs its own processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def small_tokenizer() -> Tokenizer:
    return train_tokenizer(vocab_size=512, seed=0, steps=2, step_items=50)


@pytest.fixture(scope="session")
def small_chat(small_tokenizer: Tokenizer) -> Chat:
    return Chat(small_tokenizer)
