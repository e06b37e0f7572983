"""LiteLLM: OpenAI's and Anthropic's routes, streams, tools and response formats."""

import asyncio
import json
import sys
from typing import Any

import litellm

URL = sys.argv[1]
CALL = sys.argv[2]
litellm.drop_params = True
OPENAI: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": "none", "model": "openai/demo"}
HOSTED = {**OPENAI, "model": "hosted_vllm/demo"}
CLAUDE = {"api_base": URL, "api_key": "none", "model": "anthropic/claude-sonnet-4-5"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA},
}


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


for where in (OPENAI, HOSTED, CLAUDE):
    whole = litellm.completion(**where, messages=user("hello"), max_tokens=50)
    assert whole.choices[0].message.content == "hello", whole
    assert whole.usage.completion_tokens > 0
    stream = litellm.completion(
        **where,
        messages=user("hello"),
        max_tokens=50,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == "hello"
    )
    print("chat", where["model"])

    conversation = user(CALL)
    called = litellm.completion(**where, messages=conversation, tools=[TOOL], max_tokens=500)
    message = called.choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Rome"},
    )
    assert called.choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    again = litellm.completion(
        **where,
        messages=[*conversation, message, result, *user("It is sunny.")],
        max_tokens=50,
        tools=[TOOL],
    )
    assert again.choices[0].message.content == "It is sunny.", again
    pieces = litellm.completion(
        **where, messages=conversation, tools=[TOOL], stream=True, max_tokens=500
    )
    built = litellm.stream_chunk_builder(list(pieces))
    assert json.loads(built.choices[0].message.tool_calls[0].function.arguments) == {"city": "Rome"}
    print("tools", where["model"])

schema_format = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
}
shaped = litellm.completion(
    **OPENAI, messages=user('{"city": "Rome"}'), response_format=schema_format
)
assert json.loads(shaped.choices[0].message.content) == {"city": "Rome"}
print("form")

written = litellm.text_completion(
    model="text-completion-openai/demo",
    api_base=OPENAI["api_base"],
    api_key="none",
    prompt="hello",
    max_tokens=20,
)
assert written.choices[0].text == "hello"
response = litellm.responses(**OPENAI, input="hello")
assert response.output[-1].content[0].text == "hello"
print("completions and responses")


async def together() -> None:
    pending = (litellm.acompletion(**OPENAI, messages=user(f"number {i}")) for i in range(8))
    answers = [answer.choices[0].message.content for answer in await asyncio.gather(*pending)]
    assert answers == [f"number {i}" for i in range(8)]


asyncio.run(together())
print("together")

try:
    litellm.completion(**{**OPENAI, "model": "openai/unknown"}, messages=user("hello"))
except litellm.NotFoundError:
    print("refusals")
