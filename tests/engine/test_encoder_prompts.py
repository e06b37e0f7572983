"""Prompts of models with an encoder: every form, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.engine.rendering import Renderer
from core.errors import InvalidRequest
from core.step import EncoderFacts, EncoderInput
from core.testing.byte_tokenizer import ByteTokenizer

TOKENS = EncoderFacts(max_len=8, vocab_size=256, start_tokens=(2, 7))
FRAMES = EncoderFacts(max_len=3, shape=(2, 6), start_tokens=(9,))
FEATURES = np.arange(12, dtype=np.float64).reshape(2, 6)


def renderer(facts: EncoderFacts | None) -> Renderer:
    made = Renderer(ByteTokenizer(), None)
    made.encoder = facts
    return made


@pytest.mark.parametrize(
    ("prompt", "read", "said"),
    [
        ("ab", [97, 98], [2, 7]),
        ([5, 6], [5, 6], [2, 7]),
        ({"prompt": "ab"}, [97, 98], [2, 7]),
        ({"prompt_token_ids": [5]}, [5], [2, 7]),
        ({"encoder_prompt": "ab"}, [97, 98], [2, 7]),
        ({"encoder_prompt": "ab", "decoder_prompt": None}, [97, 98], [2, 7]),
        ({"encoder_prompt": [5], "decoder_prompt": "c"}, [5], [2, 99]),
        ({"encoder_prompt": {"prompt_token_ids": [5]}, "decoder_prompt": [2, 3]}, [5], [2, 3]),
        ({"encoder_prompt": "ab", "decoder_prompt": {"prompt_token_ids": [3]}}, [97, 98], [2, 3]),
    ],
)
def test_forms(prompt: Any, read: list[int], said: list[int]) -> None:
    made = renderer(TOKENS).prompt(prompt)
    assert made.encoder == EncoderInput(len(read), read)
    assert (made.token_ids, made.source_ids) == (said, read)


@pytest.mark.parametrize("array", [FEATURES, FEATURES.tolist(), torch.tensor(FEATURES)], ids=["numpy", "list", "torch"])
@pytest.mark.parametrize("whole", [True, False])
def test_features_are_any_array(array: Any, whole: bool) -> None:
    source = {"input_features": array}
    made = renderer(FRAMES).prompt({"encoder_prompt": source} if whole else source)
    assert made.encoder is not None
    assert (made.token_ids, made.encoder.length, made.encoder.shape) == ([9], 3, (2, 6))
    assert np.array_equal(np.frombuffer(made.encoder.features, np.float32).reshape(2, 6), FEATURES)


@pytest.mark.parametrize(
    ("facts", "prompt", "text"),
    [
        (TOKENS, {"decoder_prompt": "a"}, "encoder_prompt: is missing"),
        (TOKENS, {"encoder_prompt": "", "decoder_prompt": "a"}, "encoder_prompt: is empty"),
        (TOKENS, "abcdefghi", "encoder_prompt: has 9 tokens, but the model's encoder takes 8"),
        (TOKENS, [256], "encoder_prompt: token id 256 is outside the vocabulary of 256"),
        (TOKENS, {"encoder_prompt": "a", "decoder_promt": "b"}, "decoder_promt: stands beside .*decoder_prompt"),
        (TOKENS, {"encoder_prompt": {"multi_modal_data": {"audio": 1}}}, "multi_modal_data"),
        (FRAMES, "text", r"reads features, an array of \[2, 6\] numbers, not text"),
        (FRAMES, {"encoder_prompt": {"prompt": ""}}, "has no 'input_features'"),
        (FRAMES, {"input_features": FEATURES, "prompt": "a"}, "prompt: stands beside 'input_features'"),
        (FRAMES, {"input_features": FEATURES[None]}, r"has the shape \[1, 2, 6\]; the model takes \[2, 6\]"),
        (FRAMES, {"input_features": FEATURES[:, :5]}, r"has the shape \[2, 5\]"),
        (FRAMES, {"input_features": [["a"] * 6] * 2}, "must be an array of numbers"),
        (FRAMES, {"input_features": FEATURES * np.nan}, "not finite"),
        (None, {"encoder_prompt": "a"}, "encoder_prompt: no plugin reads it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(facts: EncoderFacts | None, prompt: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        renderer(facts).prompt(prompt)
