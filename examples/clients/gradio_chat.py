"""Gradio: a chat page on http://127.0.0.1:7860."""

import os
from collections.abc import Iterator

import gradio
from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ENGINE_API_KEY", "none"))
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id


def answer(message: str, history: list[dict]) -> Iterator[str]:
    """Yield the answer so far."""
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in history]
    messages = [*turns, {"role": "user", "content": message}]
    text = ""
    for chunk in client.chat.completions.create(model=model, messages=messages, stream=True):
        text += chunk.choices[0].delta.content or ""
        yield text


page = gradio.ChatInterface(answer, title=model)

if __name__ == "__main__":
    page.launch()
