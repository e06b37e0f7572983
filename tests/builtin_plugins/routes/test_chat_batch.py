"""`/v1/chat/completions/batch`: one choice per conversation."""

from __future__ import annotations

from typing import Any

import pytest

PATH = "/v1/chat/completions/batch"


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def post(api: Any, path: str, **fields: Any) -> Any:
    return api.call("POST", path, json=fields)


def test_each_conversation_gets_a_choice_in_order(api: Any) -> None:
    texts = [f"conversation {i}" for i in range(5)]
    single = [post(api, "/v1/chat/completions", messages=ask(text)).json() for text in texts]
    batch = post(api, PATH, messages=[ask(text) for text in texts]).json()
    assert batch["object"] == "chat.completion"
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2, 3, 4]
    assert [choice["message"] for choice in batch["choices"]] == [
        answer["choices"][0]["message"] for answer in single
    ]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][name] == sum(answer["usage"][name] for answer in single)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": ask("a")}, "messages"),
        ({"messages": [ask("a"), []]}, "messages[1]"),
        ({"messages": [ask("a"), [{"role": "user", "content": 7}]]}, "messages[1]"),
        ({"messages": [ask("a")] * 1025}, "messages"),
        ({"messages": [ask("a")], "stream": True}, "stream"),
        ({"messages": [ask("a")], "n": 2}, "n"),
        ({"messages": [ask("a")], "tools": [{"type": "function"}]}, "tools"),
        ({"messages": [ask("a")], "temperature": "hot"}, "temperature"),
    ],
)
def test_wrong_batch_names_the_field(api: Any, fields: dict[str, Any], param: str) -> None:
    reply = post(api, PATH, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)


def test_unknown_model_is_not_found(api: Any) -> None:
    assert post(api, PATH, messages=[ask("a")], model="other").status_code == 404
