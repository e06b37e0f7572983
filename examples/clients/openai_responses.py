"""OpenAI's client: the Responses API, with a second turn that continues the first."""

import os

from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ENGINE_API_KEY", "none"))
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id

first = client.responses.create(model=model, input="What is prefix caching?", temperature=0)
print(first.output_text)
second = client.responses.create(
    model=model, input="And paging?", previous_response_id=first.id, max_output_tokens=40
)
print("second turn:", second.status)
