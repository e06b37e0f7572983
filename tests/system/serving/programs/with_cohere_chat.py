"""Cohere's client with a chat model: chat, tools, formats, streams, async calls and errors."""

import asyncio
import json
import sys

import cohere

URL = sys.argv[1]
client = cohere.ClientV2(api_key="none", base_url=URL)
MESSAGES = [{"role": "user", "content": "How is the weather?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome"]}},
            "required": ["city"],
        },
    },
}

answer = client.chat(
    model="demo", messages=MESSAGES, max_tokens=8, temperature=0, k=1, p=0.9, seed=1
)
assert answer.message.content
assert answer.message.content[0].text
assert answer.finish_reason in ("COMPLETE", "MAX_TOKENS")
assert answer.usage.tokens.output_tokens > 0
pieces = list(client.chat_stream(model="demo", messages=MESSAGES, max_tokens=8, temperature=0))
assert pieces[0].type == "message-start"
assert pieces[-1].type == "message-end"
texts = [
    piece.delta.message.content.text or "" for piece in pieces if piece.type == "content-delta"
]
assert "".join(texts)
print("chat")

called = client.chat(
    model="demo", messages=MESSAGES, tools=[TOOL], tool_choice="REQUIRED", max_tokens=100
)
(call,) = called.message.tool_calls
assert call.function.name == "weather"
json.loads(call.function.arguments)
conversation = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
conversation += [
    {
        "role": "tool",
        "tool_call_id": call.id,
        "content": [{"type": "document", "document": {"data": {"sun": 1}}}],
    }
]
assert client.chat(model="demo", messages=conversation, tools=[TOOL], max_tokens=8).finish_reason
arguments = ""
for piece in client.chat_stream(
    model="demo", messages=MESSAGES, tools=[TOOL], tool_choice="REQUIRED", max_tokens=100
):
    if piece.type == "tool-call-delta":
        arguments += piece.delta.message.tool_calls.function.arguments
json.loads(arguments)
print("tools")

schema = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 9}},
    "required": ["n"],
}
form = {"type": "json_object", "json_schema": schema}
five = [{"role": "user", "content": '{"n": 5}'}]
formed = client.chat(model="demo", messages=five, response_format=form, max_tokens=60)
assert json.loads(formed.message.content[-1].text) == {"n": 5}
print("form")


async def together() -> None:
    client = cohere.AsyncClientV2(api_key="none", base_url=URL)
    answers = await asyncio.gather(
        *(client.chat(model="demo", messages=MESSAGES, max_tokens=4) for _ in range(3))
    )
    assert all(answer.message.content for answer in answers)


asyncio.run(together())
print("together")

for wrong, kind in (
    ({"model": "other"}, cohere.errors.NotFoundError),
    ({"temperature": -1}, cohere.errors.BadRequestError),
):
    try:
        client.chat(**{"model": "demo", "messages": MESSAGES, **wrong})
    except kind:
        continue
    raise AssertionError(f"{wrong} was not refused")
print("refusals")
