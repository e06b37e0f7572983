"""The server's own routes with Python's library alone: tokens of a text, and metrics."""

import json
import os
from urllib.request import Request, urlopen

url = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")
headers = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {os.environ.get('ENGINE_API_KEY', 'none')}",
}


def post(path: str, **fields: object) -> dict:
    body = json.dumps(fields).encode()
    with urlopen(Request(url + path, body, headers)) as answer:
        return json.load(answer)


found = post("/tokenize", prompt="Hello there.", return_token_strs=True)
print(found["count"], "tokens:", found["token_strs"])
print("again a text:", post("/detokenize", tokens=found["tokens"])["prompt"])
with urlopen(Request(url + "/metrics", headers=headers)) as answer:
    page = answer.read().decode()
print(next(line for line in page.splitlines() if "num_requests_running{" in line))
