"""Prompts of every form, and texts far longer than the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from builtin_plugins.tokenizers.api import ChunkedTokenizer
from core.errors import InvalidRequest
from core.frontend.text.rendering import Renderer
from core.testing.byte_tokenizer import ByteTokenizer
from core.types.prompts import Prompt


class CountingTokenizer(ByteTokenizer):
    """Counts the characters it tokenizes."""

    read = 0

    def long_texts(self) -> ChunkedTokenizer:
        return ChunkedTokenizer(self)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.read += len(text)
        return super().encode(text, add_special_tokens)


class WideTokenizer(CountingTokenizer):
    """Has a hundred characters per token."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return super().encode(text, add_special_tokens)[::100]


def test_too_long_text_is_refused_after_its_start() -> None:
    tokenizer = CountingTokenizer()
    with pytest.raises(InvalidRequest, match="has 1000000 characters"):
        Renderer(tokenizer, None).encode("x" * 1_000_000, max_tokens=100)
    assert tokenizer.read <= 1000


def test_long_text_of_few_tokens_is_tokenized_whole() -> None:
    text = "x" * 9_000
    assert len(Renderer(WideTokenizer(), None).encode(text, max_tokens=100)) == 90


def test_text_without_limit_is_tokenized_once() -> None:
    tokenizer = CountingTokenizer()
    assert len(Renderer(tokenizer, None).encode("x" * 5000)) == 5000
    assert tokenizer.read == 5000


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", Prompt([97, 98], "ab")),
        ([1, 2], Prompt([1, 2])),
        ((1, 2), Prompt([1, 2])),
        ({"prompt": "a", "cache_salt": "s"}, Prompt([97], "a", "s")),
        ({"prompt": "a", "prompt_token_ids": [5], "cache_salt": None}, Prompt([5], "a")),
        ({"prompt": "a", "multi_modal_data": None, "mm_processor_kwargs": {}}, Prompt([97], "a")),
    ],
)
def test_renderer_accepts_all_prompt_forms(prompt: Any, expected: Prompt) -> None:
    assert Renderer(ByteTokenizer(), None).prompt(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ({"promt": "a"}, "promt"),
        ({"prompt": 5, "prompt_token_ids": [1]}, "prompt"),
        ({"prompt": "a", "cache_salt": 5}, "cache_salt"),
        ({}, "prompt"),
        (None, "prompt"),
        ("\ud800", "prompt"),
    ],
)
def test_invalid_prompt_is_refused_by_field(prompt: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Renderer(ByteTokenizer(), None).prompt(prompt)
    assert refused.value.field == field


def test_unknown_prompt_key_suggests_the_nearest() -> None:
    ids: Sequence[int] = [1]
    with pytest.raises(InvalidRequest, match="did you mean 'prompt_token_ids'"):
        Renderer(ByteTokenizer(), None).prompt({"prompt_tokens_ids": ids})
