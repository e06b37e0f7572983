"""OpenAI's client: completions of several prompts, and one streamed."""

import os

from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ENGINE_API_KEY", "none"))
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id

prompts = ["A robot may not", "Once upon a time"]
answer = client.completions.create(model=model, prompt=prompts, max_tokens=12, temperature=0)
for prompt, choice in zip(prompts, answer.choices, strict=True):
    print(repr(prompt + choice.text))
stream = client.completions.create(model=model, prompt="One, two,", max_tokens=12, stream=True)
for chunk in stream:
    print(chunk.choices[0].text, end="", flush=True)
print("\nstreamed")
