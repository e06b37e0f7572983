"""Anthropic's client: a streamed answer, and the number of prompt tokens."""

import os

import anthropic

client = anthropic.Anthropic(
    base_url=os.environ.get("ENGINE_URL", "http://127.0.0.1:8000"),  # without /v1
    api_key=os.environ.get("ENGINE_API_KEY", "none"),
)
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id

question = {"role": "user", "content": "What is prefix caching?"}
with client.messages.stream(
    model=model, messages=[question], max_tokens=200, extra_body={"temperature": 0}
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
print(client.messages.count_tokens(model=model, messages=[question]).input_tokens, "prompt tokens")
