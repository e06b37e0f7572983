"""A batch file in OpenAI's format, answered by `engine run-batch`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
requests = [
    {
        "custom_id": f"request-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "demo:",
            "messages": [{"role": "user", "content": f"What is {number} plus {number}?"}],
            "max_tokens": 20,
        },
    }
    for number in (2, 3)
]
(folder / "in.jsonl").write_text("\n".join(map(json.dumps, requests)))
files = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl")]
command = [sys.executable, "-m", "core", "run-batch", "demo:", *files, "--max-model-len", "512"]
subprocess.run(command, check=True)
for line in (folder / "out.jsonl").read_text().splitlines():
    answer = json.loads(line)
    print(answer["custom_id"], answer["response"]["status_code"])
