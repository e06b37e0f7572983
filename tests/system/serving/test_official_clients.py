"""OpenAI's and Anthropic's clients with a server: answers, streams, tools, formats, background."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.served import COLD, served
from tests.timeouts import TIMEOUT_S

CALL = (
    "<think>It needs the weather.</think>Wait.\n"
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
TOOL: Any = {"name": "weather", "input_schema": SCHEMA}
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "think")


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with served(
        "scripted:", "--served-model-name", "demo", "claude-*", *FLAGS, COLD[0], "true"
    ) as found:
        yield found


@pytest.fixture(scope="module")
def claude(client: openai.OpenAI) -> Iterator[anthropic.Anthropic]:
    url = str(client.base_url).removesuffix("/v1/")
    with anthropic.Anthropic(
        base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as found:
        yield found


def test_responses_whole_streamed_and_continued(client: openai.OpenAI) -> None:
    first = client.responses.create(model="demo", input="hello", instructions="Be kind.")
    assert first.output_text == "hello"
    assert client.responses.retrieve(first.id).output_text == "hello"
    with client.responses.stream(
        model="demo", input="more", previous_response_id=first.id
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output_text == "more"
    items = client.responses.input_items.list(final.id, order="asc")
    assert [item.type for item in items] == ["message"] * 3
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    assert client.responses.input_tokens.count(model="demo", input="hello").input_tokens > 5


def test_responses_tool_round_trip(client: openai.OpenAI) -> None:
    with client.responses.stream(model="demo", input=CALL, tools=[FUNCTION], store=False) as stream:
        final = stream.get_final_response()
    reasoning, message, call = final.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "It needs the weather."
    assert message.type == "message"
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", '{"city": "Rome"}')
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    messages: Any = [
        {"role": "user", "content": CALL},
        *(item.to_dict() for item in final.output),
        result,
    ]
    again = client.responses.create(
        model="demo", input=[*messages, {"role": "user", "content": "It is sunny."}]
    )
    assert again.output_text == "It is sunny."


class City(BaseModel):
    city: str


def test_responses_parse_into_pydantic_model(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(
        model="demo", input='{"city": "Rome"}', text_format=City
    ).output_parsed
    assert parsed is not None
    assert parsed.city == "Rome"


def test_background_responses_complete_and_cancel(client: openai.OpenAI) -> None:
    begun = client.responses.create(model="demo", input="hello", background=True)
    until_s = time.monotonic() + TIMEOUT_S
    while begun.status in ("queued", "in_progress") and time.monotonic() < until_s:
        begun = client.responses.retrieve(begun.id)
    assert begun.output_text == "hello"
    long = client.responses.create(model="demo", input="x" * 15_000, background=True)
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.retrieve(long.id).status == "cancelled"


def test_responses_errors_name_field(client: openai.OpenAI) -> None:
    hosted: Any = {"type": "file_search", "vector_store_ids": []}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="demo", input="a", tools=[hosted])
    assert refused.value.param == "tools[0].type"


def test_messages_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    whole = claude.messages.create(
        model="claude-sonnet", max_tokens=100, messages=messages, system="Be kind."
    )
    assert whole.content[0].type == "text"
    assert (whole.content[0].text, whole.stop_reason, whole.model) == (
        "hello",
        "end_turn",
        "claude-sonnet",
    )
    with claude.messages.stream(model="demo", max_tokens=3, messages=messages) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert ("".join(pieces), final.stop_reason, final.usage.output_tokens) == (
        "hel",
        "max_tokens",
        3,
    )
    assert (
        claude.messages.count_tokens(model="demo", messages=messages).input_tokens
        == final.usage.input_tokens
    )
    assert (
        claude.beta.messages.create(model="demo", max_tokens=9, messages=messages, betas=["x"])
        .content[0]
        .type
        == "text"
    )


def test_messages_tool_round_trip(claude: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": CALL}]
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with claude.messages.stream(
        model="demo", max_tokens=2000, messages=messages, tools=[TOOL], thinking=thinking
    ) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    thought, _, call = final.content
    assert thought.type == "thinking"
    assert thought.thinking == "It needs the weather."
    assert call.type == "tool_use"
    assert (call.name, call.input, final.stop_reason) == ("weather", {"city": "Rome"}, "tool_use")
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"},
        {"type": "text", "text": "It is sunny."},
    ]
    messages += [
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": results},
    ]
    again = claude.messages.create(model="demo", max_tokens=100, messages=messages, tools=[TOOL])
    assert again.content[0].type == "text"
    assert again.content[0].text == "It is sunny."


def test_long_conversation_resumes_after_interruption(claude: anthropic.Anthropic) -> None:
    system = "Be kind. " * 2_500  # a token for each byte
    messages: Any = [{"role": "user", "content": "x" * 5_000}]
    with claude.messages.stream(
        model="demo", max_tokens=9_000, messages=messages, system=system
    ) as stream:
        begun = "".join(piece for piece, _ in zip(stream.text_stream, range(3), strict=False))
    messages += [{"role": "assistant", "content": begun}, {"role": "user", "content": "Go on."}]
    again = claude.messages.create(model="demo", max_tokens=100, messages=messages, system=system)
    assert again.content[0].type == "text"
    assert again.content[0].text == "Go on."
    assert again.usage.input_tokens > len(system)


@pytest.mark.parametrize("size", [33_000, 700_000])
def test_too_long_input_error_is_recognized_by_agents(
    claude: anthropic.Anthropic, client: openai.OpenAI, size: int
) -> None:
    messages: Any = [{"role": "user", "content": "x" * size}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 32768 maximum"
    ):
        claude.messages.create(model="demo", max_tokens=9, messages=messages)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="demo", input=messages)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    events = list(client.responses.create(model="demo", input=messages, stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    last: Any = events[-1]
    assert last.response.error.code == "context_length_exceeded"


def test_models_list_has_served_model(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    (model,) = claude.models.list()
    assert (model.id, model.display_name, model.type) == ("demo", "demo", "model")
    assert [card.id for card in client.models.list()] == ["demo"]


def test_messages_errors_have_anthropic_form(claude: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    searches: Any = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\].type"):
        claude.messages.create(model="demo", max_tokens=9, messages=messages, tools=[searches])
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="unknown", max_tokens=9, messages=messages)
