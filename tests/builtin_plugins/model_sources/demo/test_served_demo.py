"""The demo model served over HTTP: tools, structured outputs, reasoning, streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.served import served

pytest.importorskip("xgrammar")
FLAGS = ("--num-threads", "1", "--max-model-len", "1024", "--disable-uvicorn-access-log")
PARSERS = (
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
    "--reasoning-parser",
    "think",
)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ALARM: Any = {
    "type": "function",
    "function": {
        "name": "set_alarm",
        "description": "Set an alarm.",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"type": "integer"}, "kind": {"$ref": "#/$defs/kind"}},
            "required": ["hour", "kind"],
            "$defs": {"kind": {"enum": ["soft", "loud"]}},
        },
    },
}
PARIS = "Get the weather in Paris."


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["good", "bad"]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with served(*FLAGS, *PARSERS) as made:
        yield made


def complete(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    """Return the choice of an answer, having compared it with the streamed one."""
    messages: Any = [{"role": "user", "content": text}]
    body = {
        "model": "",
        "messages": messages,
        "temperature": 0,
        "max_completion_tokens": 200,
        **fields,
    }
    whole = client.chat.completions.create(**body).choices[0]
    with client.chat.completions.stream(**body) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == whole.finish_reason
    assert (streamed.message.content or None) == whole.message.content
    assert calls(streamed) == calls(whole)
    return whole


def calls(choice: Any) -> list[tuple[str, Any]]:
    found = choice.message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in found]


def is_valid(name: str, arguments: Any) -> bool:
    if name == "get_weather":
        return set(arguments) == {"city"} and isinstance(arguments["city"], str)
    return (
        set(arguments) == {"hour", "kind"}
        and type(arguments["hour"]) is int
        and arguments["kind"] in ("soft", "loud")
    )


def test_model_calls_a_tool_by_itself(client: openai.OpenAI) -> None:
    choice = complete(client, PARIS, tools=[WEATHER])
    assert (calls(choice), choice.finish_reason) == (
        [("get_weather", {"city": "Paris"})],
        "tool_calls",
    )


def test_parallel_calls_and_parallel_tool_calls_false(client: openai.OpenAI) -> None:
    both = "What is the weather in Paris and in Rome?"
    cities = [{"city": "Paris"}, {"city": "Rome"}]
    assert calls(complete(client, both, tools=[WEATHER])) == [
        ("get_weather", city) for city in cities
    ]
    assert calls(complete(client, both, tools=[WEATHER], parallel_tool_calls=False)) == [
        ("get_weather", cities[0])
    ]


def test_tool_choice_none_calls_no_tool(client: openai.OpenAI) -> None:
    assert calls(complete(client, PARIS, tools=[WEATHER], tool_choice="none")) == []


@pytest.mark.parametrize("text", [PARIS, "Hello"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_required_calls_are_valid_and_complete(
    client: openai.OpenAI, text: str, temperature: int
) -> None:
    fields = {
        "tools": [WEATHER, ALARM],
        "tool_choice": "required",
        "temperature": temperature,
        "seed": 1,
    }
    choice = complete(client, text, **fields)
    assert choice.finish_reason == "tool_calls"
    assert [call for call in calls(choice) if not is_valid(*call)] == []
    assert choice.message.content is None
    assert len(calls(complete(client, text, **fields, parallel_tool_calls=False))) == 1


@pytest.mark.parametrize("name", ["get_weather", "set_alarm"])
def test_named_function_is_called_once(client: openai.OpenAI, name: str) -> None:
    named = {"type": "function", "function": {"name": name}}
    choice = complete(client, PARIS, tools=[WEATHER, ALARM], tool_choice=named)
    ((called, arguments),) = calls(choice)
    assert (called, choice.finish_reason, is_valid(called, arguments)) == (name, "tool_calls", True)


def test_conversation_continues_after_tool_results(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": PARIS}]
    body: dict[str, Any] = {
        "model": "",
        "tools": [WEATHER],
        "temperature": 0,
        "max_completion_tokens": 100,
    }
    message = client.chat.completions.create(messages=messages, **body).choices[0].message
    assert message.tool_calls
    messages.append(message)
    for call in message.tool_calls:
        content = json.dumps({"city": "Paris", "temperature": 21, "condition": "sunny"})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    answer = client.chat.completions.create(messages=messages, **body).choices[0]
    assert (answer.finish_reason, answer.message.tool_calls) == ("stop", None)
    assert answer.message.content


def test_parse_returns_pydantic_models(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(
        model="",
        messages=[
            {
                "role": "user",
                "content": "Extract name and age as JSON: Ada Lovelace is 36 years old.",
            }
        ],
        response_format=Person,
        temperature=0,
        max_completion_tokens=200,
    )
    assert isinstance(found.choices[0].message.parsed, Person)


def test_reasoning_precedes_structured_output_and_can_be_disabled(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    for thinks in (True, False):
        body = {"chat_template_kwargs": {"enable_thinking": thinks}}
        choice = complete(client, "What is 347 + 285?", response_format=form, extra_body=body)
        assert choice.finish_reason == "stop"
        assert type(json.loads(choice.message.content)) is int
        assert bool(getattr(choice.message, "reasoning", None)) is thinks
        assert getattr(choice.message, "reasoning_content", None) == getattr(
            choice.message, "reasoning", None
        )


def test_thinking_token_budget_ends_reasoning(client: openai.OpenAI) -> None:
    free, short = (
        complete(client, "What is 347 + 285?", extra_body=body)
        for body in ({}, {"thinking_token_budget": 3})
    )
    assert 0 < len(short.message.reasoning) < len(free.message.reasoning)
    assert short.message.content
