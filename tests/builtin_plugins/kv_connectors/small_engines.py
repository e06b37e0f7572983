"""Engines with small caches, with and without a KV connector."""

from __future__ import annotations

import socket
import time
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams
from core.testing.invariants import check_scheduler
from tests.timeouts import TIMEOUT_S

FAKE = [
    "core.testing.fake_model",
    "builtin_plugins.kv_connectors.testing",
    "tests/system/proofs/features/windowed.py",
]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = [[2 + (i * 5 + j * j) % 60 for j in range(70)] for i in range(8)]
"""Eight distinct prompts; the cache holds three."""
BLOCKS = 40
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_num_seqs": 4,
    "dtype": "float32",
    "max_model_len": 128,
    "block_size": 8,
    "num_threads": 1,
    "plugins": FAKE,
}
Tokens = list[list[int]]


def open_llm(
    connector: str = "",
    extra: dict[str, Any] | None = None,
    *,
    model: str = "fake:",
    **options: Any,
) -> LLM:
    """Return an engine with a small cache. `transfer`: keys of --kv-transfer-config.

    Transfers get a generous timeout by default, because test machines may be busy.
    """
    transfer = {"timeout_s": TIMEOUT_S} | options.pop("transfer", {})
    given = None
    if connector:
        given = {"kv_connector": connector, "kv_connector_extra_config": extra or {}, **transfer}
    return LLM(
        model, kv_transfer_config=given, **{"num_gpu_blocks_override": BLOCKS} | SETTINGS | options
    )


def run_twice_in_ranks(
    checkpoint: Path, split: tuple[int, int], connector: str, folder: Path, **options: Any
) -> tuple[tuple[Tokens, list[int]], tuple[Tokens, list[int]]]:
    """Return `run` of two engines, one after the other, that share a folder of blocks.

    `split`: tensor and pipeline parallel size.
    """
    given = {"kv_connector": connector, "kv_connector_extra_config": {"folder": str(folder)}}
    prompts = [[(7 * i + 3 * j * j) % 290 for j in range(60)] for i in range(3)]
    tensor, pipeline = split
    seen = []
    for _ in range(2):
        with LLM(
            str(checkpoint),
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            kv_transfer_config=given,
            dtype="float32",
            max_model_len=96,
            kv_cache_memory_bytes=8 << 20,
            max_num_seqs=4,
            **options,
        ) as llm:
            seen.append(run(llm, prompts))
    first, second = seen
    return first, second


def run(llm: LLM, prompts: list[list[int]] = PROMPTS) -> tuple[Tokens, list[int]]:
    """Return the tokens of every prompt, and its number of cached prompt tokens."""
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    check_scheduler(llm.core.scheduler)
    return [list(o.outputs[0].token_ids) for o in outputs], [
        o.num_cached_tokens or 0 for o in outputs
    ]


@cache
def reference_tokens(model: str = "fake:") -> Tokens:
    """Return the tokens of every prompt without a connector."""
    with open_llm(model=model) as llm:
        return run(llm)[0]


def tiers_of(llm: LLM) -> list[Any]:
    """Return the scheduler halves, in lookup order."""
    planned = dict(llm.core.scheduler._extensions._planned)
    return [
        unwrap(method).__self__
        for name, method in planned.items()
        if name.startswith("kv_connectors")
    ]


def only_tier(llm: LLM) -> Any:
    """Return the scheduler half of the only tier."""
    (half,) = tiers_of(llm)
    return half


def settle(llm: LLM) -> None:
    """Step until no write is pending or in flight."""
    tiers = tiers_of(llm)
    end_s = time.monotonic() + TIMEOUT_S
    while any(tier._writes.pending or tier._in_flight for tier in tiers):
        assert time.monotonic() < end_s, "transfers do not end"
        llm.core.step()
        time.sleep(0.005)


def check_under(fault: str, llm: LLM, expected: Tokens) -> None:
    """Assert that a fault changes no token, and that the tier reports it."""
    for _ in range(2):
        assert run(llm)[0] == expected
        assert llm.reset_prefix_cache()
    counts = only_tier(llm).status.counts
    works = fault in ("none", "slow")
    assert (counts.loaded > 0) == works
    assert (counts.load_failures + counts.store_failures == 0) == works
    assert only_tier(llm).status.info()["state"] == ("ready" if works else "degraded")


def flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
