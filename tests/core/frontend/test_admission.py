"""Admission validates everything that a client sends."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import InvalidRequest
from core.frontend.admission import Admission, ModelLimits, mix_seed
from core.testing.byte_tokenizer import ByteTokenizer
from core.types import SamplingParams
from core.types.prompts import Prompt

LIMITS = ModelLimits(vocab_size=257, max_model_len=32, max_logprobs=20, eos_token_ids=(256,))


def admit(prompt: list[int], params: dict[str, Any], admission: Admission | None = None) -> Any:
    admission = admission or Admission(LIMITS, ByteTokenizer(), [], seed=7)
    return admission.admit(
        admission.pending_request("r", Prompt(prompt), SamplingParams(**params), 0, {})
    )


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ([], {}, "prompt"),
        ([1] * 32, {}, "prompt"),
        ([257], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([True], {}, "prompt"),
        ([1], {"stop_token_ids": [257]}, "stop_token_ids"),
        ([1], {"allowed_token_ids": [3, 400]}, "allowed_token_ids"),
        ([1], {"logit_bias": {257: 1.0}}, "logit_bias"),
        ([1], {"logprobs": 21}, "logprobs"),
        ([1], {"prompt_logprobs": -1}, "prompt_logprobs"),
        ([1], {"min_p": 0.5}, "min_p"),
        ([1], {"truncate_prompt_tokens": 32}, "truncate_prompt_tokens"),
    ],
)
def test_invalid_request_is_refused_by_field(
    prompt: list[int], params: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        admit(prompt, params)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -1),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("n", 65),
        ("n", 0),
        ("max_tokens", 0),
        ("seed", 2**63),
        ("stop", ["x"] * 65),
        ("stop", [3]),
        ("stop_token_ids", [1.5]),
        ("logit_bias", {3: float("nan")}),
        ("bad_words", [""]),
        ("allowed_token_ids", []),
        ("ignore_eos", 1),
    ],
)
def test_sampling_params_reject_values_outside_their_bounds(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_max_tokens_is_limited_by_the_context() -> None:
    assert admit([1] * 30, {"max_tokens": 100})[0].max_tokens == 2
    assert admit([1] * 30, {"max_tokens": None})[0].max_tokens == 2


def test_truncation_keeps_the_last_prompt_tokens() -> None:
    assert admit(list(range(40)), {"truncate_prompt_tokens": 3})[0].prompt_token_ids == [37, 38, 39]
    assert len(admit(list(range(40)), {"truncate_prompt_tokens": -1})[0].prompt_token_ids) == 31


def test_first_sequence_gets_the_given_seed_and_others_derived_ones() -> None:
    requests = admit([1], {"n": 3, "seed": 5})
    assert requests[0].seed == 5
    assert len({r.seed for r in requests}) == 3
    assert [r.seed for r in requests] == [r.seed for r in admit([1], {"n": 3, "seed": 5})]


def test_unset_seeds_are_distinct_and_reproducible() -> None:
    def draw() -> list[int]:
        admission = Admission(LIMITS, ByteTokenizer(), [], seed=7)
        return [admit([1], {}, admission)[0].seed for _ in range(3)]

    first = draw()
    assert first == draw()
    assert len(set(first)) == 3
    assert all(0 <= mix_seed(s, 1) < 2**63 for s in first)
