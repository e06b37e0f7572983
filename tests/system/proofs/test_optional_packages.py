"""Offline inference needs none of the serving packages: they are missing on some images."""

from __future__ import annotations

import subprocess
import sys

from tests.timeouts import TIMEOUT_S

PROGRAM = """
import sys

MISSING = {"zmq", "fastapi", "starlette", "uvicorn", "xgrammar", "prometheus_client"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from core import LLM, SamplingParams
with LLM("scripted:", max_model_len=128, kv_cache_memory_bytes=1 << 20, log_level="error") as llm:
    print(llm.generate("works", SamplingParams(max_tokens=20), use_tqdm=False)[0].outputs[0].text)
"""


def test_llm_works_without_serving_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "works"
