"""Child process of `bench startup`: starts an engine and generates one token.

Reads keywords of `LLM` as JSON from standard input; prints times of the system's monotonic clock,
which the parent shares.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Start an engine, generate one token, print the time of each stage."""
    times = {"interpreter": time.monotonic()}
    keywords = json.load(sys.stdin)
    import torch  # noqa: F401 - lazy: a stage of its own

    from core import LLM, SamplingParams  # lazy: timed as a stage

    times["imports"] = time.monotonic()
    with LLM(**keywords) as llm:
        times["model"] = time.monotonic()
        (output,) = llm.generate(
            [1, 2, 3, 4], SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False
        )
        times["first token"] = time.monotonic()
    print(json.dumps({"times": times, "error": output.error}))


if __name__ == "__main__":
    main()
