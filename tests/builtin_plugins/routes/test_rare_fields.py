"""Fields of requests that few clients send, each with its effect or its answer."""

from __future__ import annotations

from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api import ConfigError
from core.types.pooling import PoolingParams

BODY: dict[str, Any] = {"input": "hello", "max_output_tokens": 4}


def respond(api: Any, **fields: Any) -> dict[str, Any]:
    reply = api.call("POST", "/v1/responses", json={**BODY, **fields})
    return {"status": reply.status_code, **reply.json()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tool_calls", 3),
        ("safety_identifier", "client-1"),
        ("user", "client-1"),
        ("metadata", {"a": "b"}),
        ("prompt_cache_key", "key"),
        ("truncation", "auto"),
    ],
)
def test_field_of_a_response_is_in_the_answer(api: Any, name: str, value: Any) -> None:
    assert respond(api)[name] != value
    assert respond(api, **{name: value})[name] == value


def test_service_tier_of_the_answer_is_the_one_there_is(api: Any) -> None:
    assert respond(api, service_tier="flex")["service_tier"] == "default"


def test_truncation_auto_lets_the_engine_cut_the_prompt(api: Any) -> None:
    respond(api)
    respond(api, truncation="auto")
    assert [each.truncate_prompt_tokens for each in api.engine.sampling] == [None, -1]


def test_include_adds_log_probabilities(api: Any) -> None:
    def logprobs(**fields: Any) -> Any:
        return respond(api, **fields)["output"][-1]["content"][0]["logprobs"]

    assert not logprobs()
    assert logprobs(include=["message.output_text.logprobs"])


def test_no_spaces_stand_between_special_tokens() -> None:
    """Both values of the field mean the same: tokens are joined as they are spelled."""
    texts = set()
    with LLM("scripted:", max_model_len=64, scripted_special_tokens=["<a>", "<b>"]) as llm:
        tokenizer = llm.get_tokenizer()
        assert tokenizer is not None
        prompt = {"prompt_token_ids": tokenizer.encode("<a><b>")}
        for spaces in (False, True):
            params = SamplingParams(
                spaces_between_special_tokens=spaces, skip_special_tokens=False, max_tokens=8
            )
            texts.add(llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text)
    assert len(texts) == 1
    assert not any(" <" in text for text in texts)


def test_activation_is_a_former_name_of_use_activation() -> None:
    assert PoolingParams(activation=False).use_activation is False
    assert PoolingParams().use_activation is None


def test_per_request_draft_metrics_need_speculation() -> None:
    with pytest.raises(ConfigError, match="--per-request-spec-decode-metrics: got a value"):
        LLM("scripted:", max_model_len=64, per_request_spec_decode_metrics="summary")


def test_responses_store_owner_bytes_bounds_the_share_of_one_owner(make_api: Any) -> None:
    api = make_api(responses_store_owner_bytes=1500)
    first = respond(api)["id"]
    for _ in range(3):
        respond(api)
    assert api.get(f"/v1/responses/{first}").status_code == 404
    assert make_api().get(f"/v1/responses/{first}").status_code == 404
