"""A file of prompts, one a line, to a file of answers as JSON lines."""

import json
import tempfile
from pathlib import Path

from core import LLM, SamplingParams

folder = Path(tempfile.mkdtemp())
(folder / "prompts.txt").write_text("".join(f"Count to {number}:\n" for number in range(2, 34)))
prompts = (folder / "prompts.txt").read_text().splitlines()
with LLM("demo:", max_model_len=256, log_level="error") as llm:
    params = SamplingParams(temperature=0, max_tokens=8)
    outputs = llm.generate(prompts, params, use_tqdm=False)
lines = [json.dumps({"prompt": each.prompt, "text": each.outputs[0].text}) for each in outputs]
(folder / "answers.jsonl").write_text("\n".join(lines))
print(len(lines), "answers; the first:", lines[0])
