"""Prefill and decode engines, in one process or in two."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams
from core.testing.invariants import check_scheduler
from tests.builtin_plugins.kv_connectors.small_engines import (
    PARAMS,
    PROMPTS,
    free_port,
    only_tier,
    open_llm,
    reference_tokens,
    settle,
)

TOKEN = "a token of the tests"
FIRST = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
}


def open_peer(
    role: str, port: int = 0, *, extra: dict[str, Any] | None = None, **options: Any
) -> LLM:
    """Return an engine that exchanges blocks over `tcp` or another `connector`."""
    transfer = {"kv_role": role, "kv_port": port or free_port(), "kv_buffer_size": 4 << 20}
    transfer |= options.pop("transfer", {})
    extra = {"token": TOKEN, **(extra or {})}
    return open_llm(options.pop("connector", "tcp"), extra, transfer=transfer, **options)


def prefill(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[dict[str, Any]]:
    """Prefill prompts. Return the offer of each."""
    outputs = llm.generate(
        prompts, FIRST, use_tqdm=False, kv_transfer_params=[REMOTE_DECODE] * len(prompts)
    )
    settle(llm)
    return [output.kv_transfer_params or {} for output in outputs]


def decode(
    llm: LLM, offers: list[dict[str, Any]], prompts: list[list[int]] = PROMPTS
) -> tuple[list[list[int]], list[int]]:
    """Return the tokens of every prompt, and its number of cached prompt tokens."""
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False, kv_transfer_params=offers)
    check_scheduler(llm.core.scheduler)
    return [list(o.outputs[0].token_ids) for o in outputs], [
        o.num_cached_tokens or 0 for o in outputs
    ]


_PRODUCER = """
import json, sys
options, sys.path[:0] = json.loads(sys.argv[1]), json.loads(sys.argv[2])
from tests.builtin_plugins.kv_connectors.engine_pairs import open_peer, prefill
with open_peer("kv_producer", **options) as llm:
    print("offers: " + json.dumps(prefill(llm)), flush=True)
    sys.stdin.read()
"""


@contextmanager
def producer(**options: Any) -> Iterator[tuple[list[dict[str, Any]], subprocess.Popen[str]]]:
    """Prefill all prompts in another process. Yields the offers and the process."""
    paths = json.dumps([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    command = [sys.executable, "-c", _PRODUCER, json.dumps(options), paths]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("offers: "))
            yield json.loads(line.removeprefix("offers: ")), process
        finally:
            process.kill()


def check_until_the_producer_is_killed(**options: Any) -> None:
    """Check that a dead producer's blocks are recomputed, with equal tokens."""
    expected = reference_tokens()
    with producer(**options) as (offers, process), open_peer("kv_consumer", **options) as llm:
        assert decode(llm, offers[:4], PROMPTS[:4]) == (expected[:4], [64] * 4)
        assert only_tier(llm).status.counts.load_failures == 0
        process.kill()
        process.wait()
        assert decode(llm, offers[4:], PROMPTS[4:]) == (expected[4:], [0] * 4)
        assert only_tier(llm).status.info()["state"] == "degraded"
