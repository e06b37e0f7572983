"""A profile of steps, written by torch's profiler for Perfetto or chrome://tracing."""

import tempfile
from pathlib import Path

from core import LLM, SamplingParams

folder = tempfile.mkdtemp()
profiler = {"profiler": "torch", "torch_profiler_dir": folder}
with LLM("demo:", profiler_config=profiler, max_model_len=256, log_level="error") as llm:
    llm.start_profile()
    llm.generate("One two three", SamplingParams(max_tokens=4), use_tqdm=False)
    llm.stop_profile()
print(len(list(Path(folder).rglob("*.json*"))), "file of a profile")
