"""OpenAI's client: a streamed answer, and a structured output."""

import os

from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int
    city: str


url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ENGINE_API_KEY", "none"))
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id

question = {"role": "user", "content": "What is prefix caching?"}
for chunk in client.chat.completions.create(
    model=model, messages=[question], stream=True, temperature=0
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

text = {
    "role": "user",
    "content": "Extract name, age and city as JSON: Ada Lovelace is 36 years old and lives in "
    "London.",
}
answer = client.chat.completions.parse(
    model=model, messages=[text], response_format=Person, temperature=0
)
print(answer.choices[0].message.parsed)
