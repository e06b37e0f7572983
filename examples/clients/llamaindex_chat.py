"""LlamaIndex: a conversation, streamed."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
key = os.environ.get("ENGINE_API_KEY", "none")
model = (
    os.environ.get("ENGINE_MODEL")
    or OpenAI(base_url=f"{url}/v1", api_key=key).models.list().data[0].id
)

llm = OpenAILike(model=model, api_base=f"{url}/v1", api_key=key, is_chat_model=True, temperature=0)
for answer in llm.stream_chat([ChatMessage(role="user", content="What is prefix caching?")]):
    print(answer.delta, end="", flush=True)
print()
