"""`/derender` routes: tokens of `/inference/v1/generate` become the answer of the whole server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.tokens.derender import DerenderRoutes
from builtin_plugins.routes.tokens.generate import TokenRoutes
from builtin_plugins.routes.tokens.render import RenderRoutes
from builtin_plugins.servers.http.app import EngineApp
from core import AsyncLLM
from tests.in_process import send_to

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GROUPS = (OpenAIRoutes, TokenRoutes, RenderRoutes, DerenderRoutes)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
TEXTS = {
    "text": ("An answer: é 😀.", {}),
    "thoughts": ("<think>hm</think>Yes.", {}),
    "call": (f"<think>hm</think>{CALL}", {"tools": [TOOL]}),
    "two calls": (f"Both:\n{CALL}\n{CALL}", {"tools": [TOOL]}),
    "forced": ('{"x": 1}', {"tools": [TOOL], "tool_choice": TOOL}),
    "logprobs": ("é.", {"logprobs": True, "top_logprobs": 2}),
}


class Served:
    def __init__(self) -> None:
        self.engine = AsyncLLM(
            "scripted:",
            disable_frontend_multiprocessing=True,
            max_model_len=512,
            num_gpu_blocks_override=64,
            num_threads=1,
            log_level="error",
            structured_outputs_config={"warm_up": False},
            enable_scale_out=True,
            enable_auto_tool_choice=True,
            tool_call_parser="hermes",
            reasoning_parser="think",
        )
        config = self.engine.config
        groups = {each.__name__: each(self.engine, config) for each in GROUPS}
        self.app = EngineApp(groups, config.options)

    def post(self, path: str, body: Any, *, status: int = 200) -> Any:
        reply = send_to(self.app, "POST", path, json=body)
        assert reply.status_code == status, reply.text
        if reply.headers["content-type"].startswith("text/event-stream"):
            events = [line for line in reply.text.split("\n\n") if line.startswith("data: {")]
            return [json.loads(line.removeprefix("data: ")) for line in events]
        return reply.json()


@pytest.fixture(scope="module")
def served() -> Any:
    found = Served()
    yield found
    found.engine.shutdown()


def chat(name: str, **more: Any) -> dict[str, Any]:
    text, fields = TEXTS[name]
    message = {"role": "user", "content": text}
    return {"messages": [message], "max_tokens": 300, "temperature": 0, **fields, **more}


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what differs between two requests."""
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            assert call.pop("id")
    return {name: answer[name] for name in ("object", "model", "choices")}


@pytest.mark.parametrize("name", TEXTS)
def test_derendered_chat_is_the_answer(served: Served, name: str) -> None:
    body = chat(name)
    expected = served.post(CHAT, body)
    rendered = served.post(f"{CHAT}/render", body)
    generated = served.post("/inference/v1/generate", rendered)
    fields = {"generate_response": generated, "chat_request": body, "model": expected["model"]}
    answer = served.post(f"{CHAT}/derender", fields)
    assert answer["id"] == generated["request_id"]
    assert answer["usage"] == expected["usage"]
    assert plain(answer) == plain(expected)


@pytest.mark.parametrize("name", TEXTS)
def test_derendered_events_join_to_the_answer(served: Served, name: str) -> None:
    body = chat(name)
    expected = served.post(CHAT, body)["choices"][0]
    rendered = served.post(f"{CHAT}/render", {**body, "stream": True})
    events = served.post("/inference/v1/generate", rendered)
    state = None
    deltas: list[dict[str, Any]] = []
    reasons = []
    for event in events:
        fields = {"stream": True, "generate_chunk": event, "chat_request": body}
        answer = served.post(f"{CHAT}/derender", {**fields, "stream_state": state})
        state = answer["stream_state"]
        assert answer["chunk"]["object"] == "chat.completion.chunk"
        assert answer["chunk"]["id"] == event["request_id"]
        for choice in answer["chunk"]["choices"]:
            deltas.append(choice["delta"])
            reasons.append(choice["finish_reason"])
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    message = expected["message"]
    for field in ("content", "reasoning"):
        text = "".join(delta.get(field) or "" for delta in deltas)
        assert text == (message.get(field) or "")
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            known = calls.setdefault(call["index"], {"id": "", "arguments": ""})
            known["id"] += call.get("id") or ""
            known["arguments"] += call["function"]["arguments"]
    found = [json.loads(call["arguments"]) for call in calls.values()]
    given = message.get("tool_calls", ())
    assert found == [json.loads(call["function"]["arguments"]) for call in given]
    assert len({call["id"] for call in calls.values()}) == len(calls)
    assert [reason for reason in reasons if reason] == [expected["finish_reason"]]


def test_without_its_request_a_chat_is_text_of_the_tokens(served: Served) -> None:
    tokens = list(b"<think>hm</think>Yes.")
    fields = {
        "generate_response": {"request_id": "r", "choices": [{"index": 3, "token_ids": tokens}]},
        "prompt_tokens": 7,
    }
    answer = served.post(f"{CHAT}/derender", fields)
    (choice,) = answer["choices"]
    assert (answer["id"], choice["index"], choice["finish_reason"]) == ("r", 3, "stop")
    assert choice["message"]["content"].startswith("<think>hm</think>Yes")
    usage = {"prompt_tokens": 7, "completion_tokens": 21, "total_tokens": 28}
    assert usage.items() <= answer["usage"].items()


def test_derendered_completion_is_the_answer(served: Served) -> None:
    body = {"prompt": ["one é", "two"], "max_tokens": 6, "temperature": 0, "logprobs": 2, "n": 2}
    expected = served.post(COMPLETIONS, body)
    rendered = served.post(f"{COMPLETIONS}/render", body)
    generated = [served.post("/inference/v1/generate", each) for each in rendered]
    fields = {
        "generate_responses": generated,
        "completion_request": body,
        "prompt_token_ids": [each["token_ids"] for each in rendered],
        "prompt_tokens": [len(each["token_ids"]) for each in rendered],
    }
    answer = served.post(f"{COMPLETIONS}/derender", fields)
    assert plain(answer) == plain(expected)
    assert answer["usage"] == expected["usage"]


def test_derendered_completion_events_join_to_the_answer(served: Served) -> None:
    body = {"prompt": "é 😀 x", "max_tokens": 9, "temperature": 0}
    expected = served.post(COMPLETIONS, body)["choices"][0]
    (rendered,) = served.post(f"{COMPLETIONS}/render", {**body, "stream": True})
    events = served.post("/inference/v1/generate", rendered)
    state = None
    choices = []
    for event in events:
        fields = {"stream": True, "generate_chunk": event, "completion_request": body}
        fields |= {"prompt_token_ids": [rendered["token_ids"]], "stream_state": state}
        answer = served.post(f"{COMPLETIONS}/derender", fields)
        state = answer["stream_state"]
        choices += answer["chunk"]["choices"]
    assert "".join(choice["text"] for choice in choices) == expected["text"]
    assert choices[-1]["finish_reason"] == expected["finish_reason"]


ONE = {"index": 0, "token_ids": [65]}
WRONG = [
    ({}, "generate_response"),
    ({"generate_response": {"choices": []}}, "choices"),
    ({"generate_response": {"choices": [ONE, ONE]}}, "generate_response.choices"),
    (
        {"generate_response": {"choices": [{"token_ids": [65] * 600}]}},
        "generate_response.choices[0].token_ids",
    ),
    (
        {"generate_response": {"choices": [{"token_ids": [1 << 40]}]}},
        "generate_response.choices[0].token_ids",
    ),
    (
        {"generate_response": {"choices": [{**ONE, "logprobs": {"content": []}}]}},
        "generate_response.choices[0].logprobs.content",
    ),
    (
        {
            "generate_response": {
                "choices": [
                    {**ONE, "logprobs": {"content": [{"top_logprobs": [{"token": "x"}]}]}},
                ]
            }
        },
        "generate_response.choices[0].logprobs",
    ),
    (
        {"generate_response": {"choices": [ONE]}, "chat_request": {"messages": []}},
        "chat_request.messages",
    ),
    ({"stream": True, "generate_chunk": {"choices": [ONE, {**ONE, "index": 1}]}}, "generate_chunk"),
    (
        {
            "stream": True,
            "generate_chunk": {"choices": [ONE]},
            "stream_state": {"output_token_ids": [65], "output_chunk_lens": [2]},
        },
        "stream_state.output_chunk_lens",
    ),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[param for _, param in WRONG])
def test_wrong_tokens_name_the_field(served: Served, fields: dict[str, Any], param: str) -> None:
    error = served.post(f"{CHAT}/derender", fields, status=400)["error"]
    assert error["param"].startswith(param)
    assert served.post(CHAT, chat("text"))["choices"]
