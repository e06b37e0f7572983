"""A fresh process up to its first token: keywords of `LLM` come in as JSON, times go out.

Times are those of the system's monotonic clock, which the process that started this one reads, too.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Start an engine, make one token, say when what was done."""
    times = {"interpreter": time.monotonic()}
    keywords = json.load(sys.stdin)
    import torch  # noqa: F401 - lazy: a stage of its own

    from core import LLM, SamplingParams  # lazy: after what comes before it has been timed

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
