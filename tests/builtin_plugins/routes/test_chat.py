"""`/v1/chat/completions` over an engine that answers with the last message."""

from __future__ import annotations

import pytest

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def test_answer_has_openai_fields(api):
    body = api.chat("hello").json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 10


def test_chat_without_limit_fills_the_context(api):
    assert api.chat("x" * 100).json()["usage"]["completion_tokens"] == 100
    assert api.engine.sampling[0].max_tokens is None


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_and_max_completion_tokens_work(api, field):
    assert api.chat("hello", **{field: 2}).json()["choices"][0]["message"]["content"] == "he"


def test_chat_stream_starts_with_role_and_matches_whole_answer(api, read_events):
    chunks = read_events(api.chat("hello", n=2, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    opening = chunks[0]["choices"]
    assert [choice["delta"] for choice in opening] == [{"role": "assistant", "content": ""}] * 2
    texts = ["", ""]
    reasons = [None, None]
    for chunk in chunks[1:]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"]["content"]
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == ["hello", "hello"]
    assert reasons == ["stop", "stop"]


def test_stream_includes_usage_when_requested(api, read_events):
    chunks = read_events(api.chat("hello", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5


def test_chat_logprobs_have_bytes_and_top_tokens(api):
    content = api.chat("é", logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert content[0]["logprob"] == -0.5
    assert content[0]["bytes"] == list(content[0]["token"].encode())
    assert len(content[0]["top_logprobs"]) == 1
    assert api.engine.sampling[0].logprobs == 1


def test_top_logprobs_without_logprobs_is_rejected(api):
    assert api.chat("a", top_logprobs=2).json()["error"]["param"] == "top_logprobs"


def test_template_kwargs_reach_the_renderer(api):
    kwargs = {"enable_thinking": False}
    api.chat(
        "a", tools=[TOOL], chat_template_kwargs=kwargs, reasoning_effort="low", tool_choice="none"
    )
    rendered = api.engine.rendered[0]
    assert rendered["tools"] == [TOOL]
    assert rendered["template_kwargs"] == {"enable_thinking": False, "reasoning_effort": "low"}
    assert rendered["add_generation_prompt"] is True


def test_documents_reach_the_renderer(api):
    api.chat("a", documents=[{"title": "t", "text": "b"}])
    api.chat("a", documents=[])
    kwargs = [each["template_kwargs"] for each in api.engine.rendered]
    assert kwargs == [{"documents": [{"title": "t", "text": "b"}]}, {}]


def test_continue_final_message_adds_no_generation_prompt(api):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = api.chat(messages=messages, continue_final_message=True, echo=True).json()
    assert api.engine.rendered[0]["add_generation_prompt"] is False
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "bb", "refusal": None}


def test_response_role_option_sets_answer_role(make_api):
    assert (
        make_api(response_role="poet").chat("a").json()["choices"][0]["message"]["role"] == "poet"
    )


def test_request_chat_template_needs_trust_flag(api, make_api):
    reply = api.chat("a", chat_template="{{ 1 }}")
    assert reply.status_code == 400
    assert "--trust-request-chat-template" in reply.json()["error"]["message"]
    assert (
        make_api(trust_request_chat_template=True).chat("a", chat_template="{{ 1 }}").status_code
        == 200
    )


def test_message_error_names_its_index(api):
    error = api.chat(messages=[{"role": "user", "content": 5}]).json()["error"]
    assert error["param"] == "messages[0].content"


def test_empty_message_list_is_rejected(api):
    reply = api.chat(messages=[])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")
