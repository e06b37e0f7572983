"""Engines over small caches, with a connector behind them and without."""

from __future__ import annotations

import socket
import time
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams
from tests.patience import PATIENCE_S

FAKE = ["core.testing.fake_model", "core.testing.kv_faults", "tests/proofs/features/windowed.py"]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = [[2 + (i * 5 + j * j) % 60 for j in range(70)] for i in range(8)]
"""Eight beginnings, over a cache that holds three."""
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
    """Return an engine over a small cache; `options` that belong to the transfer config are given
    in `transfer`.

    Blocks have all the time a test has, where it does not say otherwise: machines may be busy with
    others.
    """
    transfer = {"timeout_s": PATIENCE_S} | options.pop("transfer", {})
    given = (
        {"kv_connector": connector, "kv_connector_extra_config": extra or {}, **transfer}
        if connector
        else None
    )
    return LLM(
        model, kv_transfer_config=given, **{"num_gpu_blocks_override": BLOCKS} | SETTINGS | options
    )


def run(llm: LLM, prompts: list[list[int]] = PROMPTS) -> tuple[Tokens, list[int]]:
    """Return the tokens of every prompt, and how many of its own were found."""
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    llm.core.scheduler.check()
    return [list(o.outputs[0].token_ids) for o in outputs], [
        o.num_cached_tokens or 0 for o in outputs
    ]


@cache
def alone(model: str = "fake:") -> Tokens:
    """Return the tokens of every prompt without a connector."""
    with open_llm(model=model) as llm:
        return run(llm)[0]


def tiers_of(llm: LLM) -> list[Any]:
    """Return the scheduler halves, the one asked first first."""
    planned = dict(llm.core.scheduler._extensions._planned)
    return [
        unwrap(method).__self__
        for name, method in planned.items()
        if name.startswith("kv_connectors")
    ]


def traffic(llm: LLM) -> Any:
    """Return the scheduler half of the only tier."""
    (half,) = tiers_of(llm)
    return half


def settle(llm: LLM) -> None:
    """Step until every block that is to leave has left."""
    halves = tiers_of(llm)
    end_s = time.monotonic() + PATIENCE_S
    while any(half._storing.fresh or half._moves for half in halves):
        assert time.monotonic() < end_s, "blocks are on their way for ever"
        llm.core.step()
        time.sleep(0.005)


def check_under(fault: str, llm: LLM, expected: Tokens) -> None:
    """Assert that tokens are right whatever the fault, and that the tier says so where it does not
    work.
    """
    for _ in range(2):
        assert run(llm)[0] == expected
        assert llm.reset_prefix_cache()
    counts = traffic(llm).counts
    works = fault in ("none", "slow")
    assert (counts.loaded > 0) == works
    assert (counts.unloaded + counts.unstored == 0) == works
    assert traffic(llm).info()["state"] == ("ready" if works else "degraded")


def flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
