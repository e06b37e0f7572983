"""OpenAI's client: a tool call, its result, and the answer. Needs a tool parser."""

import json
import os

from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ENGINE_API_KEY", "none"))
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id


def get_weather(city: str) -> str:
    return f"It is sunny in {city}."


parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
answer = client.chat.completions.create(
    model=model, messages=messages, tools=[tool], tool_choice="required", temperature=0
)
message = answer.choices[0].message
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls or []:
    result = get_weather(**json.loads(call.function.arguments))
    print(call.function.name, "->", result)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
final = client.chat.completions.create(
    model=model, messages=messages, tools=[tool], tool_choice="none", max_tokens=60, temperature=0
)
print("answer:", final.choices[0].message.content)
