"""Structured outputs over HTTP with OpenAI's client and the scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.served import served

pytest.importorskip("xgrammar")
FLAGS = ("--max-model-len", "512", "--structured-outputs-config.backend", "xgrammar")


class City(BaseModel):
    city: str
    inhabitants: int


class Person(BaseModel):
    name: str
    home: City
    friends: list[City]


BAD_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": "objekt"}}},
    },
}
DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"items": DEEP}
PERSON = {
    "name": "Ada",
    "home": {"city": "Zürich", "inhabitants": 7},
    "friends": [{"city": "B", "inhabitants": 1}],
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with served("scripted:", *FLAGS) as made:
        yield made


def chat(client: openai.OpenAI, content: str, **fields: Any) -> Any:
    return client.chat.completions.create(
        model="scripted:",
        messages=[{"role": "user", "content": content}],
        max_tokens=60,
        temperature=0,
        **fields,
    )


def test_parse_returns_nested_pydantic_models(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="scripted:",
        messages=[{"role": "user", "content": json.dumps(PERSON)}],
        response_format=Person,
    )
    assert answer.choices[0].message.parsed == Person.model_validate(PERSON)


def test_streamed_answer_matches_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    stream = chat(
        client,
        "I would rather talk",
        stream=True,
        extra_body={"structured_outputs": {"json": schema, "disable_any_whitespace": True}},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert type(json.loads(text)["ok"]) is bool


def test_completions_accept_response_format(client: openai.OpenAI) -> None:
    body = {"structured_outputs": {"choice": ["left", "right"]}}
    answer = client.completions.create(
        model="scripted:", prompt="right", max_tokens=20, extra_body=body
    )
    assert answer.choices[0].text in ("left", "right")


def test_json_object_allows_any_object(client: openai.OpenAI) -> None:
    answer = chat(client, '{"a": [1, null]}', response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "no rule"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {"type": "objekt"}}}, "structured_outputs.json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "nothing"}}},
            "response_format",
        ),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs.backend"),
        (
            {"structured_outputs": {"json": {"enum": [str(i) for i in range(70_000)]}}},
            "structured_outputs.json",
        ),
        ({"structured_outputs": {"json": DEEP}}, "structured_outputs.json"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": [BAD_TOOL], "tool_choice": "required"}, "tools[0].function.parameters"),
        (
            {"tools": [BAD_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [BAD_TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
        ),
    ],
)
def test_unsupported_schema_is_bad_request(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, "x", extra_body=fields)
    assert refused.value.param == param
    assert chat(client, "still there").choices[0].message.content == "still there"
