"""Prompts of models with an encoder: every form, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from builtin_plugins.features.encoder_inputs.admission import EncoderPrompts
from core.api import InvalidRequest, SamplingParams
from core.api.features import AdmissionContext, PendingRequest
from core.frontend.text.rendering import Renderer
from core.model_spec.encoder import EncoderFacts, EncoderInput
from core.testing.byte_tokenizer import ByteTokenizer
from core.types.plugin_params import KnownNames

TOKENS = EncoderFacts(max_len=8, vocab_size=256, start_tokens=(2, 7))
FRAMES = EncoderFacts(max_len=3, shape=(2, 6), start_tokens=(9,))
FEATURES = np.arange(12, dtype=np.float64).reshape(2, 6)


def complete(
    facts: EncoderFacts | None, prompt: Any, **given: Any
) -> tuple[PendingRequest, EncoderInput | None]:
    """Return a request as the extension leaves it, and what the encoder is to read."""
    renderer = Renderer(ByteTokenizer(), None)
    extension = EncoderPrompts()
    stated = {} if facts is None else {"encoder": msgspec.msgpack.encode(facts)}
    extension.attach(AdmissionContext(stated, renderer.prompt, renderer.tokenizer, 256, 64))
    renderer.keys = KnownNames.collect([extension], "prompt_keys")
    read = renderer.prompt(prompt)
    draft = PendingRequest(
        request_id="r",
        prompt_token_ids=read.token_ids,
        sampling=SamplingParams(),
        plugin_fields={**given, **read.plugin_fields},
        text=read.text,
        cache_salt=read.cache_salt,
    )
    draft = extension.prepare(draft) if extension.applies_to(draft) else draft
    encoded = draft.features.get("encoder")
    return draft, None if encoded is None else msgspec.msgpack.decode(encoded, type=EncoderInput)


@pytest.mark.parametrize(
    ("prompt", "read", "target"),
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
def test_prompt_forms(prompt: Any, read: list[int], target: list[int]) -> None:
    made, encoded = complete(TOKENS, prompt)
    assert encoded == EncoderInput(len(read), read)
    assert (made.prompt_token_ids, made.num_encoder_positions) == (target, len(read))
    assert made.extra_fields["encoder_prompt_token_ids"] == read


def test_outputs_show_both_texts() -> None:
    both, _ = complete(TOKENS, {"encoder_prompt": "ab", "decoder_prompt": "c"})
    assert (both.text, both.extra_fields["encoder_prompt"]) == ("c", "ab")
    one, _ = complete(TOKENS, "ab")
    assert (one.text, one.extra_fields["encoder_prompt"]) == (None, "ab")


def test_fields_of_other_features_are_ignored() -> None:
    made, encoded = complete(TOKENS, "ab", other=1)
    assert encoded is not None
    assert made.plugin_fields == {"other": 1}


@pytest.mark.parametrize(
    "array", [FEATURES, FEATURES.tolist(), torch.tensor(FEATURES)], ids=["numpy", "list", "torch"]
)
@pytest.mark.parametrize("whole", [True, False])
def test_features_accept_any_array(array: Any, whole: bool) -> None:
    source = {"input_features": array}
    made, encoded = complete(FRAMES, {"encoder_prompt": source} if whole else source)
    assert encoded is not None
    assert (made.prompt_token_ids, encoded.length, encoded.shape) == ([9], 3, (2, 6))
    assert np.array_equal(np.frombuffer(encoded.features, np.float32).reshape(2, 6), FEATURES)


@pytest.mark.parametrize(
    ("facts", "prompt", "text"),
    [
        (TOKENS, {"decoder_prompt": "a"}, "encoder_prompt: is missing"),
        (TOKENS, {"encoder_prompt": "", "decoder_prompt": "a"}, "encoder_prompt: is empty"),
        (TOKENS, "abcdefghi", "encoder_prompt: has 9 tokens, but the model's encoder takes 8"),
        (TOKENS, [256], "encoder_prompt: token id 256 is outside the vocabulary of 256"),
        (
            TOKENS,
            {"encoder_prompt": "a", "decoder_promt": "b"},
            "decoder_promt: no plugin reads it.*decoder_prompt",
        ),
        (
            TOKENS,
            {"encoder_prompt": "a", "prompt": "b"},
            "prompt: cannot be combined with encoder_prompt",
        ),
        (
            TOKENS,
            {"encoder_prompt": {"encoder_prompt": "a"}},
            "encoder_prompt: is not allowed within",
        ),
        (
            TOKENS,
            {"encoder_prompt": "a", "decoder_prompt": {"input_features": FEATURES}},
            "input_features: is not allowed",
        ),
        (TOKENS, {"input_features": FEATURES}, "input_features: is not supported"),
        (TOKENS, {"encoder_prompt": {"multi_modal_data": {"audio": 1}}}, "multi_modal_data"),
        (FRAMES, "text", r"reads features, an array of \[2, 6\] numbers, not text"),
        (FRAMES, {"encoder_prompt": {"prompt": ""}}, "has no 'input_features'"),
        (
            FRAMES,
            {"input_features": FEATURES, "prompt": "a"},
            "prompt: cannot be combined with 'input_features'",
        ),
        (
            FRAMES,
            {"input_features": FEATURES[None]},
            r"has the shape \[1, 2, 6\]; the model takes \[2, 6\]",
        ),
        (FRAMES, {"input_features": FEATURES[:, :5]}, r"has the shape \[2, 5\]"),
        (FRAMES, {"input_features": [["a"] * 6] * 2}, "must be an array of numbers"),
        (FRAMES, {"input_features": FEATURES * np.nan}, "not finite"),
        (None, {"encoder_prompt": "a"}, "encoder_prompt: is for models with an encoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_encoder_inputs_are_rejected(
    facts: EncoderFacts | None, prompt: Any, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        complete(facts, prompt)
