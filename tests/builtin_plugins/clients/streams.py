"""Streams with outputs to compare, and a plugin with which a request kills its engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

from core import AsyncLLM, SamplingParams
from core.types import RequestOutputKind
from tests.timeouts import TIMEOUT_S

DELTA: Final = RequestOutputKind.DELTA
POISON: Final = '''
"""A processor that ends its process as the request specifies."""
import os
import signal

from core.api import Entry, hookimpl


class Poison:
    params = ()
    argmax_invariant = False

    def __init__(self, context):
        self.ways = {}

    def wants(self, sampling):
        return bool(sampling.extra_args)

    def added(self, row, sampling, token_ids, prompt_len):
        self.ways[row] = (sampling.extra_args["way"], prompt_len + sampling.extra_args["at_token"])

    def removed(self, row):
        self.ways.pop(row, None)

    def apply(self, logits, rows):
        for row, length in zip(rows.rows, rows.lengths):
            way, at = self.ways[row]
            if length >= at:
                os._exit(3) if way == "exit" else os.kill(os.getpid(), signal.SIGKILL)
        return logits


@hookimpl
def engine_logits_processors():
    return [Entry("poison", Poison, "kills")]
'''


def params(i: int, **fields: Any) -> SamplingParams:
    """Return greedy or seeded parameters, some with logprobs and penalties."""
    chosen: dict[str, Any] = {"max_tokens": 120 + i, "ignore_eos": True, "output_kind": DELTA}
    chosen |= {"temperature": 0.0} if i % 2 else {"temperature": 0.9, "top_p": 0.9, "seed": i}
    if i % 4 == 1:
        chosen |= {"logprobs": 2, "repetition_penalty": 1.3}
    if i % 8 == 2:
        chosen |= {"prompt_logprobs": 1, "n": 2}
    return SamplingParams(**{**chosen, **fields})


def prompt(i: int) -> list[int]:
    draw = random.Random(i)
    return [draw.randrange(5, 90) for _ in range(draw.randrange(1, 60))]


async def collect(engine: AsyncLLM, i: int, **fields: Any) -> dict[str, Any]:
    """Return all outputs of one stream in comparable form."""
    got: dict[str, Any] = {"tokens": {}, "text": {}, "logprobs": {}, "prompt": [], "ends": {}}
    async for output in engine.generate(prompt(i), params(i, **fields), f"request-{i}"):
        for part in output.outputs:
            got["tokens"].setdefault(part.index, []).extend(part.token_ids)
            got["text"][part.index] = got["text"].get(part.index, "") + part.text
            top = [list(position) for position in part.logprobs or ()]
            got["logprobs"].setdefault(part.index, []).extend(top)
            got["ends"][part.index] = part.finish_reason
        got["prompt"] = [position and list(position) for position in output.prompt_logprobs or ()]
    return got


async def until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> float:
    """Wait for a condition; return the waiting time in seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "timeout"
        await asyncio.sleep(0.005)
    return time.monotonic() - started


async def streams(engine: AsyncLLM, rounds: int = 1, count: int = 16) -> list[dict[str, Any]]:
    """Run `count` concurrent streams, each of `rounds` identical requests."""

    async def client(i: int) -> list[dict[str, Any]]:
        return [await collect(engine, i) for _ in range(rounds)]

    return [
        result for results in await asyncio.gather(*map(client, range(count))) for result in results
    ]
