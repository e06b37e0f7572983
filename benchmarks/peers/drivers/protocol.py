"""Driver protocol: one JSON line per request and response.

Runs in the peer's environment and imports only the standard library. A driver calls `answer_lines`
with a function that loads its engine. Its first line `{"ready": true}` follows the first generated
token. A request `{"prompts": [[ids]], "num_tokens": n}` returns `{"seconds": s, "counts": [n,
...]}`; with `"each": true` also `"times"`, the time of each token of the first prompt. Library
output goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

FIRST_PROMPT = list(range(1000, 1016))

Prompts = Sequence[Sequence[int]]


class Engine(Protocol):
    """An engine with a loaded model. Greedy; outputs end at the number of tokens only."""

    def generate(self, prompts: Prompts, num_tokens: int) -> list[int]:
        """Complete all prompts together; return the number of tokens of each."""

    def token_times(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Complete one prompt; return the time of each token, by `time.perf_counter`."""


Load = Callable[[str, int, dict[str, Any]], Engine]
"""Loads an engine from model path, number of threads and engine options."""


def answer_lines(load: Load) -> None:
    """Load an engine by the command line, then answer requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = load(arguments.model, arguments.threads, arguments.options)
    engine.generate([FIRST_PROMPT], 1)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(engine, json.loads(line))), file=answers, flush=True)


def _answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    prompts = request["prompts"]
    num_tokens = request["num_tokens"]
    began = time.perf_counter()
    if request.get("each"):
        times = engine.token_times(prompts[0], num_tokens)
        return {"seconds": time.perf_counter() - began, "counts": [len(times)], "times": times}
    counts = engine.generate(prompts, num_tokens)
    return {"seconds": time.perf_counter() - began, "counts": counts}
