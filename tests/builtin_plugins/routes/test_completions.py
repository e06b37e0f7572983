"""`/v1/completions` over an engine that answers with the prompt."""

from __future__ import annotations

import pytest

from core.api.features import KnownNames


def test_answer_has_openai_fields(api):
    body = api.complete("hello").json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "echo"
    assert body["choices"] == [
        {
            "index": 0,
            "text": "hello",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}


def test_max_tokens_finishes_with_length(api):
    choice = api.complete("hello", max_tokens=2).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("he", "length")


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([104, 105], ["hi"]),
        ([[104, 105], [106]], ["hi", "j"]),
        (["a", [98]], ["a", "b"]),
    ],
)
def test_completions_accept_every_prompt_form(api, prompt, texts):
    assert [choice["text"] for choice in api.complete(prompt).json()["choices"]] == texts


def test_choice_index_counts_over_prompts_and_sequences(api):
    choices = api.complete(["a", "b"], n=2).json()["choices"]
    assert [(c["index"], c["text"]) for c in choices] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]


def test_completion_stream_matches_whole_answer(api, read_events):
    chunks = read_events(api.complete(["hello", "you"], n=2, stream=True))
    texts = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "hello", 1: "hello", 2: "you", 3: "you"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_stream_includes_usage_when_requested(api, read_events):
    chunks = read_events(api.complete("hello", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_continuous_usage_increases(api, read_events):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = read_events(api.complete("abc", stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


def test_usage_options_force_and_detail_usage(make_api, read_events):
    api = make_api(enable_force_include_usage=True, enable_prompt_tokens_details=True)
    usage = read_events(api.complete("abc", stream=True))[-1]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1}


def test_echo_repeats_the_prompt(api, read_events):
    assert api.complete("abc", echo=True).json()["choices"][0]["text"] == "abcabc"
    assert api.complete([104, 105], echo=True).json()["choices"][0]["text"] == "hihi"
    chunks = read_events(api.complete("abc", echo=True, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcabc"


@pytest.mark.parametrize("prompt", ["abc", [1, 2], ["a", "b"]])
def test_prompts_cut_to_no_token_have_no_choices(api, read_events, prompt):
    body = api.complete(prompt, truncate_prompt_tokens=0).json()
    assert (body["choices"], body["usage"]["total_tokens"]) == ([], 0)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    (end,) = read_events(api.complete(prompt, truncate_prompt_tokens=0, **options))
    assert (end["choices"], end["usage"]["total_tokens"]) == ([], 0)
    refused = api.complete(None, truncate_prompt_tokens=0)
    assert refused.json()["error"]["param"] == "prompt"


def test_default_length_of_completions_is_sixteen_tokens(api):
    body = api.complete("x" * 30).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


def test_prompt_scoring_generates_no_tokens(api):
    body = api.complete("abc", echo=True, logprobs=1, max_tokens=0).json()
    choice = body["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert body["usage"]["completion_tokens"] == 0


def test_logprobs_name_tokens_and_offsets(api):
    logprobs = api.complete("abc", logprobs=1).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["top_logprobs"][0] == {"a": -0.5, " ": -9999.0}


def test_streamed_logprobs_continue_text_offset(api, read_events):
    chunks = read_events(api.complete("abc", logprobs=0, stream=True, echo=True))
    offsets = [
        offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]
    ]
    assert offsets == [0, 1, 2, 3, 4, 5]


def test_logprob_tokens_as_ids(api, make_api):
    logprobs = api.complete("a", logprobs=0, return_tokens_as_token_ids=True).json()["choices"][0][
        "logprobs"
    ]
    assert logprobs["tokens"] == ["token_id:97"]
    by_option = make_api(return_tokens_as_token_ids=True).complete("a", logprobs=0).json()
    assert by_option["choices"][0]["logprobs"]["tokens"] == ["token_id:97"]


def test_return_token_ids_adds_token_ids(api):
    choice = api.complete("ab", return_token_ids=True).json()["choices"][0]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([97, 98], [97, 98])


def test_sampling_fields_reach_the_engine(api):
    fields = {
        "temperature": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 7,
        "stop": "x",
        "stop_token_ids": [5],
        "logit_bias": {"97": 2},
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "bad_words": ["no"],
        "vllm_xargs": {"mine": 1},
    }
    assert api.complete("a", **fields).status_code == 200
    sampling = api.engine.sampling[0]
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.stop) == (
        0.5,
        3,
        7,
        ["x"],
    )
    assert sampling.logit_bias == {97: 2}
    assert sampling.extra_args == {"mine": 1}


def test_request_overrides_model_sampling_defaults(api):
    api.engine.sampling_defaults = {"temperature": 0.2, "top_p": 0.9, "max_new_tokens": 5}
    api.complete("a", temperature=0.7)
    assert (api.engine.sampling[0].temperature, api.engine.sampling[0].top_p) == (0.7, 0.9)


def test_null_field_means_default(api):
    assert (
        api.complete(
            "a", temperature=None, stop=None, n=None, stream=None, logit_bias=None
        ).status_code
        == 200
    )


def test_request_id_field_sets_answer_id(api):
    assert api.complete("a", request_id="mine").json()["id"] == "cmpl-mine"
    reply = api.call(
        "POST", "/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "theirs"}
    )
    assert reply.json()["id"] == "cmpl-theirs"


def test_engine_failure_fails_only_its_request(api):
    api.engine.fail_at = 0
    reply = api.complete("abc")
    assert reply.status_code == 500
    assert reply.json()["error"] == {
        "message": "made to fail",
        "type": "server_error",
        "param": None,
        "code": "request_failed",
    }


def test_stream_failure_is_last_event(api, read_events):
    api.engine.fail_at = 2
    chunks = read_events(api.complete("abcdef", stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["a", "b"]
    assert chunks[-1]["error"]["code"] == "request_failed"


def test_streamed_text_offsets_match_whole_answer(api, read_events):
    fields = {"logprobs": 1, "echo": True, "max_tokens": 20}
    whole = api.complete("é中x", **fields).json()["choices"][0]["logprobs"]["text_offset"]
    streamed = [
        offset
        for chunk in read_events(api.complete("é中x", stream=True, **fields))
        for choice in chunk["choices"]
        for offset in choice["logprobs"]["text_offset"]
    ]
    assert streamed == whole


def test_only_feature_fields_reach_generate(make_api):
    api = make_api()
    assert (
        "kv_transfer_params" in api.complete(kv_transfer_params={"a": 1}).json()["error"]["message"]
    )
    api.engine.fields = KnownNames(frozenset({"kv_transfer_params", "sight"}))
    for call in (api.complete, api.chat):
        assert (
            call(kv_transfer_params={"a": 1}, sight=2, lora_request={"path": "/"}).status_code
            == 200
        )
        assert api.engine.options[-1]["kv_transfer_params"] == {"a": 1}
        assert api.engine.options[-1]["sight"] == 2
        assert "lora_request" not in api.engine.options[-1]
