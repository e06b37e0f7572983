"""OpenAI's client: a choice, a regex and a JSON schema that answers must have."""

import os

from openai import OpenAI

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ENGINE_API_KEY", "none"))
model = os.environ.get("ENGINE_MODEL") or client.models.list().data[0].id

schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}
constraints = (
    {"choice": ["yes", "no"]},
    {"regex": "[0-9]{3}"},
    {"json": schema, "disable_any_whitespace": True},
)
for constraint in constraints:
    answer = client.completions.create(
        model=model,
        prompt="The weather: ",
        max_tokens=60,
        temperature=0,
        extra_body={"structured_outputs": constraint},
    )
    print(next(iter(constraint)), "->", answer.choices[0].text)
