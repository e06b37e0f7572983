"""How a driver is spoken to: one JSON line asks, one answers.

Runs in the peer's own environment and imports nothing but the standard library. A driver calls
`answer_lines` with a function that loads its engine. The first line that it says, `{"ready":
true}`, comes with the first generated token. Then each request `{"prompts": [[ids]], "num_tokens":
n}` is answered by `{"seconds": s, "counts": [n, ...]}`, and one with `"each": true` also by
`"times"`, the moment at which each token of the first prompt was there. What libraries print goes
to the error output.
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
    """An engine that holds a model. Greedy; nothing but the number of tokens ends an answer."""

    def generate(self, prompts: Prompts, num_tokens: int) -> list[int]:
        """Complete all prompts together, as fast as the engine can; return how many tokens each
        got.
        """

    def token_times(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Complete one prompt; return the moment of each token, by `time.perf_counter`."""


Load = Callable[[str, int, dict[str, Any]], Engine]
"""From the model's path, the number of threads and the engine's own options."""


def answer_lines(load: Load) -> None:
    """Load an engine as the command line says, then answer until nothing more is asked."""
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
