"""OpenAI's client: reasoning and answer apart, streamed. Needs a reasoning parser."""

import os

from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ENGINE_API_KEY", "none"))
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id

question = {"role": "user", "content": "What is 12 plus 7?"}
parts = {"reasoning": "", "content": ""}
for chunk in client.chat.completions.create(
    model=model, messages=[question], stream=True, temperature=0
):
    for name in parts:  # `reasoning` is a field that OpenAI's types lack
        parts[name] += getattr(chunk.choices[0].delta, name, None) or ""
for name, text in parts.items():
    print(f"{name}: {text.strip()}")
